defmodule Vm do
  # A BEAM process of its own, which can be killed.

  defstruct [:port, :pid, :said]

  @doc "Starts `child.exs`; returns what it said of its ACQUIRE."
  def start(uri, pool, identity, elixir_options \\ []) do
    run("child.exs", [uri, pool, identity], elixir_options)
  end

  @doc "Starts `service.exs`, which holds its lease under an application; returns what it said of its ACQUIRE."
  def service(uri, pool, identity, more \\ []), do: run("service.exs", [uri, pool, identity | more], [])

  defp run(script, args, elixir_options) do
    ebin = Application.app_dir(:tenure_machine_id, "ebin")
    args = elixir_options ++ ["-pa", ebin, Path.expand(script, __DIR__) | args]
    elixir = System.find_executable("elixir")

    port =
      Port.open({:spawn_executable, elixir}, [
        :binary,
        :exit_status,
        :stderr_to_stdout,
        line: 4096,
        args: args
      ])

    {pid, said} = first(port)
    %__MODULE__{port: port, pid: pid, said: said}
  end

  # What is logged comes before and between.
  defp first(port) do
    line = line(port)

    case Regex.run(~r/\A(\d+) ((?:ok|error) .*)\z/, line) do
      [_, pid, said] -> {pid, said}
      nil -> first(port)
    end
  end

  @doc "Tells it to do something; returns what it says."
  def tell(%{port: port}, word) do
    Port.command(port, word <> "\n")
    answer(port)
  end

  defp answer(port) do
    line = line(port)
    if line =~ ~r/\A(ok|error|lost|retry)( [\w ]+)?\z/, do: line, else: answer(port)
  end

  @doc "kill -9."
  def kill(vm), do: signal(vm, "KILL")

  @doc """
  Sends it a signal; returns when it has ended, and of a service that released in how many milliseconds, less those for
  which it stood still with its host.
  """
  def signal(%{port: port, pid: pid}, signal) do
    {_, 0} = System.cmd("kill", ["-" <> signal, pid])
    ended(port, nil)
  end

  @doc "Makes a service stop by itself; returns as `signal/2`."
  def system_stop(%{port: port}) do
    Port.command(port, "stop\n")
    ended(port, nil)
  end

  @doc "The end of its stdin."
  def stop(%{port: port}), do: Port.close(port)

  defp ended(port, released_ms) do
    receive do
      {^port, {:exit_status, _code}} ->
        {:ok, released_ms}

      {^port, {:data, {:eol, "released in " <> text}}} ->
        [_, ms, stood_still_ms] = Regex.run(~r/\A(\d+) ms, (\d+) ms stood still\z/, text)
        ended(port, String.to_integer(ms) - String.to_integer(stood_still_ms))

      {^port, {:data, _line}} ->
        ended(port, released_ms)
    after
      # Longer than its supervisor waits.
      60_000 -> raise "the VM did not end"
    end
  end

  defp line(port) do
    receive do
      {^port, {:data, {:eol, line}}} -> line
      {^port, {:exit_status, code}} -> raise "the VM ended with #{code}"
    after
      60_000 -> raise "the VM says nothing"
    end
  end
end
