defmodule Cluster do
  # A real throw-away cluster: `tenure dev --nodes 3`. It ends with the process that started it, which holds its stdin.

  alias Tenure.MachineId.Json

  defstruct [:port, :uri, :directory, :urls]

  # For whatever a cluster has to do by itself: the host may be busy.
  @patience_ms 60_000

  @doc "Starts one; returns when it can commit."
  def start(nodes) do
    script = ~s(printf '%s\\n' "$TENURE_URI" "$TENURE_DEV_DIR"; exec cat >/dev/null)
    args = ["dev", "--nodes", to_string(nodes), "--", "sh", "-c", script]
    binary = System.fetch_env!("TENURE_BIN")
    port = Port.open({:spawn_executable, binary}, [:binary, :exit_status, line: 4096, args: args])
    [uri, directory] = for _ <- 1..2, do: line(port)
    "tenure://" <> addresses = uri
    urls = for address <- String.split(addresses, ","), do: "http://" <> address
    %__MODULE__{port: port, uri: uri, directory: directory, urls: urls}
  end

  defp line(port) do
    receive do
      {^port, {:data, {:eol, line}}} -> line
      {^port, {:exit_status, code}} -> raise "tenure dev ended with #{code}"
    after
      @patience_ms -> raise "tenure dev did not start"
    end
  end

  @doc "The process of a node, from 1."
  def pid(cluster, node), do: cluster |> file(node, "pid") |> File.read!() |> String.trim()

  @doc "Brings back all nodes, whatever was done to them; returns when each of them can commit."
  def heal(cluster) do
    # It has no process if a test ended before it started the node again.
    for node <- nodes(cluster), do: System.cmd("kill", ["-CONT", pid(cluster, node)], stderr_to_stdout: true)
    eventually(fn -> Enum.all?(nodes(cluster), &healed?(cluster, &1)) end)
  end

  defp healed?(cluster, node) do
    if refused?(cluster, node), do: restart(cluster, node)
    ready?(cluster, node)
  end

  @doc "Returns when each node can commit."
  def ready(cluster), do: eventually(fn -> Enum.all?(nodes(cluster), &ready?(cluster, &1)) end)

  @doc "Whether a node can commit."
  def ready?(cluster, node), do: status(Enum.at(cluster.urls, node - 1))["ready"] == true

  defp nodes(cluster), do: 1..length(cluster.urls)

  defp refused?(cluster, node) do
    case :gen_tcp.connect({127, 0, 0, 1}, port(cluster, node), [], 5_000) do
      {:ok, socket} -> :gen_tcp.close(socket) != :ok
      {:error, reason} -> reason == :econnrefused
    end
  end

  @doc "KILL, STOP or CONT."
  def signal(cluster, node, signal), do: {_, 0} = System.cmd("kill", ["-" <> signal, pid(cluster, node)])

  @doc "Starts a node that was killed; returns when it serves."
  def restart(cluster, node) do
    {_text, 0} = System.cmd(file(cluster, node, "start"), [], stderr_to_stdout: true)
    :ok
  end

  defp file(cluster, node, name), do: Path.join([cluster.directory, "node-#{node}", name])

  @doc "The port of a node."
  def port(cluster, node), do: URI.parse(Enum.at(cluster.urls, node - 1)).port

  @doc "The leader, from 1, once there is one."
  def leader(cluster) do
    eventually(fn ->
      Enum.find_index(cluster.urls, &match?(%{"role" => "leader", "ready" => true}, status(&1)))
    end) + 1
  end

  # Of a node that does not answer: nothing.
  defp status(url) do
    with {:ok, {{_, 200, _}, _, text}} <- get(url <> "/v1/status"), {:ok, status} <- Json.decode(text) do
      status
    else
      _no_answer -> %{}
    end
  end

  @doc "What becomes true without an event to wait for."
  def eventually(question, deadline \\ System.monotonic_time(:millisecond) + @patience_ms) do
    cond do
      answer = question.() ->
        answer

      System.monotonic_time(:millisecond) > deadline ->
        raise "it never came to pass"

      true ->
        Process.sleep(20)
        eventually(question, deadline)
    end
  end

  defp get(url), do: :httpc.request(:get, {to_charlist(url), []}, [timeout: 1_000], body_format: :binary)

  @doc "A command, at whichever node takes it; the answer's JSON. `body`: a map, or JSON."
  def command(cluster, command, body) do
    body = if is_map(body), do: Json.encode(body), else: body
    request = fn url -> {to_charlist("#{url}/v1/#{command}"), [], ~c"application/json", body} end
    # Whether an earlier try may have taken effect, though its answer was lost.
    tries = :counters.new(1, [])

    answer =
      eventually(fn ->
        Enum.find_value(cluster.urls, fn url ->
          :counters.add(tries, 1, 1)
          post(request.(url))
        end)
      end)

    if :counters.get(tries, 1) > 1, do: repeated(answer), else: answer
  end

  defp post(request) do
    with {:ok, {{_, status, _}, _, text}} when status < 500 <-
           :httpc.request(:post, request, [timeout: 5_000], body_format: :binary) do
      {:ok, answer} = Json.decode(text)
      answer
    else
      _no_answer -> nil
    end
  end

  # CREATE, BREAK and DEL of something that no other test has: what they find done they did themselves.
  defp repeated(%{"code" => "already_exists"}), do: %{"result" => true}
  defp repeated(%{"result" => false, "reason" => "not_held"}), do: %{"result" => true}
  defp repeated(%{"result" => 0}), do: %{"result" => 1}
  defp repeated(answer), do: answer

  @doc "An operation of a pool."
  def operation(cluster, pool, operation, args) do
    command(cluster, "OP", %{"key" => pool, "operation" => operation, "args" => args})
  end

  @doc "A new pool."
  def pool(cluster, options \\ %{}) do
    pool = "pool-#{System.unique_integer([:positive])}-#{System.pid()}"
    %{"result" => true} = command(cluster, "CREATE", %{"key" => pool, "type" => "pool", "options" => options})
    pool
  end

  @doc "Its live grants: `{id, identity, fence}`."
  def holders(cluster, pool) do
    %{"result" => %{"holders" => holders}} = operation(cluster, pool, "HOLDERS", %{})
    for %{"held" => true} = holder <- holders, do: {holder["id"], holder["identity"], holder["fence"]}
  end
end
