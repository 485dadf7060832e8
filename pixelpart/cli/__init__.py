"""What each command takes, and what it calls. torch comes in only once the arguments are known to be right."""
