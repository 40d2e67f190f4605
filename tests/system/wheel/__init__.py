"""What runs inside the clean environment of ``test_wheel``; knows the installed package and nothing of the checkout."""
