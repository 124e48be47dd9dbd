"""A few prompts of our own, for self-tests and measurements that must run without any data set."""

BUILT_IN: dict[str, tuple[str, ...]] = {
    "chat": (
        "Explain in three sentences why the sky is blue.",
        "My neighbour plays the trumpet at night. Write her a short, friendly note.",
        "I have rice, eggs, a carrot and soy sauce. What can I cook in twenty minutes?",
        "Compare travelling by night train and by plane for a family with two small children.",
        "Write a limerick about a lighthouse keeper who is afraid of the dark.",
        "What should I look at before I rent a flat in a city that I do not know?",
        "Summarise the story of Little Red Riding Hood from the wolf's point of view.",
        "Give me a plan of four weeks to run five kilometres, starting from nothing.",
        "Why do cats purr? Answer as you would to a curious child of eight.",
    ),
    "code": (
        "Write a Python function that returns the n-th Fibonacci number.",
        "Show how to read a CSV file in Python and print the sum of its second column.",
        "Write a Python function that says whether a string is a palindrome, ignoring case.",
        "Write a JavaScript function that removes duplicates from an array, and explain it.",
        "Implement a stack in Python with push, pop and peek, and raise a clear error when empty.",
        "Write a SQL query that lists the three customers with the largest total of orders.",
        "Write a shell script that renames every .jpeg file in a folder to .jpg.",
        "Write a Python function that merges two sorted lists into one sorted list.",
        "Write a regular expression for dates such as 2031-07-15, and test it in Python.",
    ),
    "math": (
        "A train covers 180 km in 2.5 hours. What is its average speed? Show the steps.",
        "A shirt costs 40 euros after a discount of 20 percent. What did it cost before?",
        "Solve 3x + 7 = 25 for x, and check the result.",
        "A rectangle is 3 cm longer than wide and has an area of 70 square cm. Find its sides.",
        "What is the sum of all whole numbers from 1 to 200? Explain the trick.",
        "Two dice are thrown. How likely is a sum of 9? Show all the cases.",
        "Anna has twice as many books as Ben, together they have 54. How many has each?",
        "Find the greatest common divisor of 252 and 198 with Euclid's algorithm.",
        "A tank fills in 6 hours through one pipe and in 4 through another. How long with both?",
    ),
}
