"""The command: reads what is planned with, predicts, prints, and writes the page."""

from rich.console import Console

from tfdp.tools.plan import plan_inputs as inputs_
from tfdp.tools.plan.answers import answer
from tfdp.tools.plan.plan_options import PlanOptions
from tfdp.tools.plan.printing import printed


def run(options: PlanOptions, console: Console | None = None) -> int:
    """Plans, and prints the plans.

    Args:
      options: The options.
      console: The console to print to; by default standard output.

    Returns:
      The exit code, 0.

    Raises:
      ValueError: A file cannot be used, the model cannot be built, or the cluster cannot be.
      OSError: The page cannot be written.
    """
    console = console or Console(width=100)
    answers = answer(options, inputs_.read(options))
    printed(answers, options, console)
    if options.output is not None:
        from tfdp.tools.plan.plan_page import write_page

        write_page(answers, options, options.output)
        console.print(f"Page: {options.output}", soft_wrap=True, highlight=False)
    return 0
