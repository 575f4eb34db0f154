"""What is measured in seconds, and so runs with the machine to itself."""
