"""A few prompts of our own, for self-tests and benchmarks that must run without any data set."""

BUILT_IN: dict[str, tuple[str, ...]] = {
    "chat": (
        "Explain in three sentences why the sky is blue.",
        "My neighbour plays the trumpet at night. Write her a short, friendly note.",
    ),
    "code": (
        "Write a Python function that returns the n-th Fibonacci number.",
        "Show how to read a CSV file in Python and print the sum of its second column.",
    ),
    "math": (
        "A train covers 180 km in 2.5 hours. What is its average speed? Show the steps.",
        "A shirt costs 40 euros after a discount of 20 percent. What did it cost before?",
    ),
}
