defmodule Tenure.MachineId.BudgetTest do
  use ExUnit.Case, async: true

  import StrategyCase, only: [calm_test: 2]
  alias Tenure.MachineId.Budget

  calm_test "gives what the work gives" do
    # 200 ms are kept back, and a busy host has the rest to come to it.
    assert Budget.run(10_000, fn deadline -> {:x, Budget.left(deadline) in 1..9_800} end) == {:ok, {:x, true}}
  end

  calm_test "ends work that does not end, and nothing of it comes later" do
    caller = self()

    work = fn ->
      send(caller, {:worker, self()})
      Process.sleep(:infinity)
    end

    Process.flag(:trap_exit, true)
    # Long enough for a busy host to begin with it.
    assert Budget.limited(Budget.now() + 2_000, work) == {:error, :timeout}
    assert_received {:worker, pid}
    monitor = Process.monitor(pid)
    assert_receive {:DOWN, ^monitor, :process, ^pid, _reason}, 10_000
    # Its end is known here: so it would be there by now.
    refute_received _anything
  end

  calm_test "whatever the work ends by is an error" do
    Process.flag(:trap_exit, true)

    for work <- [
          fn -> raise "no" end,
          fn -> throw(:no) end,
          fn -> exit(:no) end,
          fn -> exit(:normal) end,
          fn -> Process.exit(self(), :kill) end,
          fn -> :erlang.error({:badmatch, "a secret"}) end
        ] do
      assert Budget.limited(Budget.now() + 10_000, work) == {:error, :internal}
    end

    refute_received _anything
  end

  calm_test "the log has a defect's place, and not its terms" do
    log =
      ExUnit.CaptureLog.capture_log(fn ->
        Budget.limited(Budget.now() + 10_000, fn -> :erlang.error({:badmatch, "a secret"}) end)
        Budget.limited(Budget.now() + 10_000, fn -> raise "a secret" end)
      end)

    assert log =~ "BudgetTest"
    refute log =~ "secret"
  end
end
