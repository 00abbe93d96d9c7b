defmodule Tenure.MachineId.Budget do
  # Time that a call may take, and does not exceed.
  #
  # The work runs in a process of its own, without a link, so that whatever it does (name resolution has no timeout of
  # its own) it can be killed when its time is over, and an exit or a late message never reaches the caller.
  # The caller sees one monitor message, which is consumed here.
  #
  # Not promised: that work which was killed had no effect at a node. It is made of what may be repeated.
  @moduledoc false

  @type deadline :: integer()

  # Kept back for the way from the worker to the caller.
  @margin_ms 100

  @doc "Monotonic milliseconds."
  @spec now() :: integer()
  def now, do: System.monotonic_time(:millisecond)

  @doc "What is left until `deadline`, milliseconds, at least 0."
  @spec left(deadline()) :: non_neg_integer()
  def left(deadline), do: max(0, deadline - now())

  @doc "Runs `work` with the deadline that it should keep by itself, for `budget_ms` at most."
  @spec run(pos_integer(), (deadline() -> result)) :: {:ok, result} | {:error, :timeout | :internal}
        when result: term()
  def run(budget_ms, work) do
    kill_at = now() + budget_ms - @margin_ms
    limited(kill_at, fn -> work.(kill_at - @margin_ms) end)
  end

  @doc "Runs `work` until `kill_at`."
  @spec limited(deadline(), (() -> result)) :: {:ok, result} | {:error, :timeout | :internal}
        when result: term()
  def limited(kill_at, work) do
    tag = make_ref()
    {pid, monitor} = spawn_monitor(fn -> exit({tag, outcome(work)}) end)

    receive do
      {:DOWN, ^monitor, :process, ^pid, {^tag, outcome}} -> outcome
      {:DOWN, ^monitor, :process, ^pid, _killed} -> {:error, :internal}
    after
      left(kill_at) ->
        Process.demonitor(monitor, [:flush])
        Process.exit(pid, :kill)
        {:error, :timeout}
    end
  end

  # The defect's message may hold a request, and so a token: its place alone is told.
  defp outcome(work) do
    {:ok, work.()}
  catch
    kind, reason ->
      require Logger
      Logger.error("tenure: #{kind} #{defect(reason)} at #{place(__STACKTRACE__)}")
      {:error, :internal}
  end

  defp defect(%struct{}), do: inspect(struct)
  defp defect(atom) when is_atom(atom), do: inspect(atom)
  defp defect(_other), do: "(of another kind)"

  defp place([{module, name, arity, at} | _]) do
    arity = if is_list(arity), do: length(arity), else: arity
    "#{inspect(module)}.#{name}/#{arity}:#{Keyword.get(at, :line, 0)}"
  end

  defp place([]), do: "an unknown place"
end
