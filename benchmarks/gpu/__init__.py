"""One machine with a GPU measured in one command: `python -m benchmarks.gpu`.

stages      what is measured: name -> function, and how many seconds it may take
apart       a stage in a process of its own: a crash, a full card or a hang ends that stage alone
models      families and the shapes in which they are measured, with random weights
policies    acting, updates, precision, compiled graphs
simulators  control steps per second
card        what the card can do at most
report      results as JSON and Markdown
"""
