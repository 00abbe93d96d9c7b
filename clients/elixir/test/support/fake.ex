defmodule Fake do
  # A node of fun/4 instead of sockets: answers what it is told to, in order, and keeps what it was asked.

  alias Tenure.MachineId.Json

  defstruct [:agent]

  @uuid "01234567-89ab-4def-8123-456789abcdef"
  @cluster "00112233445566778899aabbccddeeff"

  @doc "Answers with `replies` in order; each is an answer, or a function of the request that gives one."
  def new(replies) do
    {:ok, agent} = Agent.start_link(fn -> {replies, []} end)
    %__MODULE__{agent: agent}
  end

  @doc "Adds more."
  def push(%__MODULE__{agent: agent}, replies) do
    Agent.update(agent, fn {queue, asked} -> {queue ++ replies, asked} end)
  end

  @doc "What was asked so far, the first first."
  def asked(%__MODULE__{agent: agent}), do: Agent.get(agent, fn {_queue, asked} -> Enum.reverse(asked) end)

  @doc "The operations asked so far."
  def operations(fake), do: for(request <- asked(fake), do: request.operation)

  @doc "For the option `http`."
  def http(%__MODULE__{agent: agent}) do
    fn url, headers, body, timeout_ms ->
      {:ok, %{"key" => pool, "operation" => operation, "args" => args}} = Json.decode(body)

      request = %{
        url: url,
        headers: Map.new(headers),
        timeout_ms: timeout_ms,
        pool: pool,
        operation: operation,
        args: args
      }

      reply =
        Agent.get_and_update(agent, fn
          {[reply | replies], asked} -> {reply, {replies, [request | asked]}}
          {[], asked} -> {{:error, :refused}, {[], [request | asked]}}
        end)

      if is_function(reply), do: reply.(request), else: reply
    end
  end

  @doc "Options of a scope that no other test has."
  def options(fake, more \\ []) do
    Keyword.merge(
      [
        endpoints: ["http://a:1", "http://b:2", "http://c:3"],
        pool: "pool-#{System.unique_integer([:positive])}",
        identity: "pod-1",
        http: http(fake)
      ],
      more
    )
  end

  ## Answers

  @doc "200 with a JSON text."
  def json(text), do: {:ok, 200, [{"Content-Type", "application/json"}, {"Tenure-Cluster", @cluster}], text}

  @doc "ACQUIRE, granted."
  def granted(id, fence, more \\ %{}), do: json(~s({"result":#{grant(id, fence, more)}}))

  @doc "RENEW, renewed."
  def renewed(id, fence, more \\ %{}) do
    json(~s({"result":#{grant(id, fence, Map.put(more, "status", "\"renewed\""))}}))
  end

  defp grant(id, fence, more) do
    fields = %{
      "id" => id,
      "fence" => fence,
      "ttl_ms" => 600_000,
      "identity" => ~s("pod-1"),
      "pool" => ~s("#{@uuid}"),
      "first" => 0,
      "size" => 512,
      "floor_unix_ms" => "null"
    }

    members = for {name, value} <- Map.merge(fields, more), do: ~s("#{name}":#{value})
    "{" <> Enum.join(members, ",") <> "}"
  end

  @doc "ACQUIRE or RENEW, not granted."
  def nothing(reason), do: json(~s({"result":null,"reason":"#{reason}","retry_after_ms":1200}))

  @doc "RENEW, lost."
  def lost(reason), do: json(~s({"result":{"status":"lost"},"reason":"#{reason}"}))

  @doc "HELD."
  def held(result), do: json(~s({"result":#{result}}))

  @doc "RELEASE."
  def released(result \\ true), do: json(~s({"result":#{result}}))

  @doc "HOLDERS: one page of `{id, identity, fence}`."
  def holders(list, cursor \\ "null") do
    rows =
      for {id, identity, fence} <- list do
        ~s({"id":#{id},"held":true,"identity":"#{identity}","owner":null,"fence":#{fence},"ttl_ms":1000,) <>
          ~s("held_for_ms":1,"acquired_at":null,"note":null,"broken":null,"free_in_ms":0,"last":null})
      end

    json(~s({"result":{"holders":[#{Enum.join(rows, ",")}],"cursor":#{cursor}}}))
  end

  @doc "A problem of a node."
  def problem(status, code, more \\ "") do
    text =
      ~s({"type":"/problems/#{code}","title":"T","status":#{status},"code":"#{code}","detail":"d"#{more}})

    {:ok, status, [{"content-type", "application/problem+json"}, {"tenure-cluster", @cluster}], text}
  end

  @doc "The answer without its headers: nobody says which cluster it is of."
  def nameless({:ok, status, _headers, text}), do: {:ok, status, [], text}

  @doc "Not a node's."
  def page(status), do: {:ok, status, [{"content-type", "text/html"}], "<html>no node</html>"}
end
