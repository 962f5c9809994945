"""The experiments of a paper as one command: plan, run, collect, and put the paper's numbers beside ours."""
