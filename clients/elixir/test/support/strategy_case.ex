defmodule StrategyCase do
  # For tests of the strategy, most of them against a Fake.

  alias Tenure.NoNoncense.LeaseStrategy

  # Calls keep back 100 ms of their budgets: what stands still for less does not fail them.
  @beat_ms 20
  @late_ms_max 80
  # A try at a node has about a second, and may need two syncs.
  @disk_beat_ms 100
  @disk_late_ms_max 400

  @doc "A test whose body is `calm`; if its context has a cluster, all nodes are well at the beginning of each try."
  defmacro calm_test(name, context \\ quote(do: _), do: body) do
    quote do
      test unquote(name), unquote(context) = whole do
        StrategyCase.calm(
          fn ->
            if whole[:cluster], do: Cluster.heal(whole.cluster)
            unquote(body)
          end,
          whole[:cluster] && whole.cluster.directory
        )
      end
    end
  end

  @doc """
  Does `work`. That it fails while the whole host stands still says nothing: then it is done again, so it has to begin with
  everything new; no more than `tries` times, and said each time. `directory`: of the nodes that it asks, whose disk may
  stand still too.
  """
  def calm(work, directory \\ nil, tries \\ 3) do
    # One at each scheduler: a single one may be held up, by a write to the terminal or by the host.
    schedulers = 1..:erlang.system_info(:schedulers_online)
    beat = fn -> Process.sleep(@beat_ms) end
    watches = for number <- schedulers, do: watch(beat, @beat_ms + @late_ms_max, scheduler: number)
    watches = if directory, do: [watch_disk(directory) | watches], else: watches

    outcome =
      try do
        {:ok, work.()}
      catch
        kind, reason -> {kind, reason, __STACKTRACE__}
      end

    # Each is asked: so each ends.
    stood_still? = watches |> Enum.map(&stood_still?/1) |> Enum.any?()

    case outcome do
      {:ok, result} ->
        result

      {kind, reason, _stack} when stood_still? and tries > 1 ->
        IO.puts("again, for the host stood still: " <> Exception.format_banner(kind, reason))
        forget_messages()
        calm(work, directory, tries - 1)

      {kind, reason, stack} ->
        :erlang.raise(kind, reason, stack)
    end
  end

  # Without a link or a monitor: what a test finds in its mailbox is its own.
  defp watch(beat, most_ms, options) do
    caller = self()
    :erlang.spawn_opt(fn -> beats(beat, most_ms, caller, false) end, options)
  end

  defp beats(beat, most_ms, caller, stood_still?) do
    {ms, _} = timed(beat)
    stood_still? = stood_still? or ms > most_ms

    receive do
      :stood_still? -> send(caller, {self(), stood_still?})
    after
      0 -> if Process.alive?(caller), do: beats(beat, most_ms, caller, stood_still?)
    end
  end

  defp watch_disk(directory) do
    path = Path.join(directory, "beat-#{System.unique_integer([:positive])}")

    beat = fn ->
      Process.sleep(@disk_beat_ms)
      File.write(path, "x", [:raw, :sync])
    end

    watch(beat, @disk_beat_ms + @disk_late_ms_max, [])
  end

  defp stood_still?(watch) do
    send(watch, :stood_still?)
    receive do: ({^watch, stood_still?} -> stood_still?)
  end

  # Of a try that is over: the next one waits for its own.
  defp forget_messages do
    receive do
      _message -> forget_messages()
    after
      0 -> :ok
    end
  end

  @doc "A Fake that answers so, and the options of its own scope."
  def start(replies, more \\ []) do
    fake = Fake.new(replies)
    {fake, Fake.options(fake, more)}
  end

  @doc "The same, with a lease of ID 3, fence 17."
  def held(more \\ []) do
    {fake, options} = start([Fake.granted(3, 17)], more)
    {:ok, 3, lease, _ttl} = LeaseStrategy.acquire(600_000, options)
    {fake, options, lease}
  end

  @doc "As NoNoncense does it: a process of its own that traps exits. Nothing may be left in its mailbox."
  def in_process(work) do
    caller = self()

    {pid, monitor} =
      spawn_monitor(fn ->
        Process.flag(:trap_exit, true)
        result = work.()
        send(caller, {self(), result, Process.info(self(), [:message_queue_len, :links])})
      end)

    receive do
      {:DOWN, ^monitor, :process, ^pid, :normal} ->
        receive do: ({^pid, result, message_queue_len: 0, links: []} -> result),
                after: (0 -> raise("it left something"))

      {:DOWN, ^monitor, :process, ^pid, reason} ->
        raise "it ended by #{inspect(reason)}"
    after
      10_000 -> raise "it did not end"
    end
  end

  @doc "The milliseconds that it took, and its result."
  def timed(work) do
    {us, result} = :timer.tc(work)
    {div(us, 1000), result}
  end

  @doc "A request that is never answered."
  def hang, do: fn _request -> Process.sleep(:infinity) end
end
