defmodule Tenure.MachineId.Ask do
  # One command, put to the endpoints in turn until a node answers it or the time is over.
  #
  # Every command asked here may be repeated: ACQUIRE by its token, RENEW and RELEASE by token and fence, HOLDERS and
  # HELD are reads. So a lost answer is followed by the next endpoint. Only an answer of a tenure node ends the turn: a
  # 200 with a result, or a problem with a code that repeating does not change. All else (proxies, redirects, timeouts)
  # says nothing about the store.
  #
  # The time is dealt out evenly over the endpoints not yet asked in this round: one that hangs leaves the others theirs.
  # Rounds follow each other with a short pause and are bounded. The last tries may get crumbs of the time; that one of
  # them was not answered is no news, and not what is told of the call if anything else is known.
  @moduledoc false

  alias Tenure.MachineId.{Budget, Endpoint, Http, Json, Options}

  @enforce_keys [:body, :sent_at, :cluster, :url]
  defstruct [:body, :sent_at, :cluster, :url]

  @typedoc "A node's answer: its JSON, when the question was sent (monotonic, ms), the cluster, the endpoint."
  @type t :: %__MODULE__{body: map(), sent_at: integer(), cluster: String.t() | nil, url: String.t()}
  @typedoc "A problem that repeating does not change: the node's code."
  @type refused :: {:refused, atom(), t()}
  @type failed :: {:failed, atom(), trail :: [{String.t(), atom()}]}

  @rounds_max 12
  @pause_ms 100
  @pause_ms_max 400
  @try_ms_min 50
  @round_ms_min 200
  # In so much a node that is well answers, also a busy one.
  @telling_ms 500
  @trail_max 8

  @refusals %{
    "no_such_key" => :no_such_pool,
    "wrong_type" => :wrong_type,
    "invalid_argument" => :invalid_argument,
    "unauthenticated" => :unauthorized,
    "permission_denied" => :unauthorized,
    "rate_limited" => :rate_limited,
    "wrong_cluster" => :wrong_cluster
  }

  @doc "Asks until `deadline`; `:once` asks each endpoint at most once. An arg that is a function is called at each try."
  @spec ask(Options.t(), String.t(), map(), Budget.deadline(), :rounds | :once) ::
          {:ok, t()} | refused() | failed()
  def ask(options, operation, args, deadline, how \\ :rounds) do
    question = %{"key" => options.pool, "operation" => operation, "args" => args}
    rounds = if how == :once, do: 1, else: @rounds_max
    state = %{options: options, question: question, deadline: deadline, rounds: rounds, round: 1}
    start(Map.merge(state, %{trail: [], told: nil}))
  end

  defp start(state), do: next(state.options.endpoints, state)

  defp next([], %{round: round, rounds: rounds} = state) when round < rounds do
    pause_ms = Enum.min([@pause_ms * round, @pause_ms_max, Budget.left(state.deadline) - @round_ms_min])

    if pause_ms < @try_ms_min do
      failed(state)
    else
      Process.sleep(pause_ms)
      start(%{state | round: round + 1})
    end
  end

  defp next([], state), do: failed(state)

  defp next([endpoint | rest], state) do
    left = Budget.left(state.deadline)

    if left < @try_ms_min do
      failed(state)
    else
      timeout_ms = max(@try_ms_min, div(left, length(rest) + 1))

      with {:next, reason, hint} <- attempt(endpoint, timeout_ms, state) do
        trail = Enum.take([{endpoint.url, reason} | state.trail], @trail_max)
        next(first(rest, hint), %{state | trail: trail, told: told(state.told, reason, timeout_ms)})
      end
    end
  end

  # The last that says something.
  defp told(nil, reason, _timeout_ms), do: reason
  defp told(known, :timeout, timeout_ms) when timeout_ms < @telling_ms, do: known
  defp told(_known, reason, _timeout_ms), do: reason

  # The node that this one takes for the leader, if it is one of ours and its turn is still to come.
  defp first(rest, nil), do: rest

  defp first(rest, hint) do
    {named, others} = Enum.split_with(rest, &Endpoint.named?(&1, hint))
    named ++ others
  end

  # Without a try there was no time for one.
  defp failed(state), do: {:failed, state.told || :timeout, state.trail |> Enum.uniq() |> Enum.reverse()}

  defp attempt(endpoint, timeout_ms, state) do
    sent_at = Budget.now()
    headers = headers(state.options, timeout_ms)
    body = body(state.question)
    post = fn -> Http.post(state.options, endpoint, "/v1/OP", headers, body, timeout_ms) end

    # In a process of its own, too: a name that is not resolved costs one endpoint's time, not all.
    case Budget.limited(sent_at + timeout_ms, post) do
      {:ok, {:ok, status, headers, body}} -> judge(status, headers, body, {sent_at, endpoint.url})
      {:ok, {:error, reason}} -> {:next, reason, nil}
      {:error, reason} -> {:next, reason, nil}
    end
  end

  # What is told of the clock is as of this try.
  defp body(%{"args" => args} = question) do
    args = Map.new(args, fn {name, value} -> {name, if(is_function(value, 0), do: value.(), else: value)} end)
    Json.encode(%{question | "args" => args})
  end

  # So that a node which cannot order the command now says so, instead of being given up in silence.
  defp headers(options, timeout_ms) do
    key = if options.api_key, do: [{"authorization", "Bearer " <> options.api_key}], else: []
    [{"accept", "application/json"}, {"tenure-timeout-ms", Integer.to_string(timeout_ms)} | key]
  end

  defp judge(status, headers, text, {sent_at, url}) do
    cluster = with {_name, id} <- List.keyfind(headers, "tenure-cluster", 0), do: id

    case Json.decode(text) do
      {:ok, %{} = body} ->
        verdict(status, body, %__MODULE__{body: body, sent_at: sent_at, cluster: cluster, url: url})

      _no_object ->
        {:next, reason(status), nil}
    end
  end

  defp verdict(200, %{"result" => _}, answer), do: {:ok, answer}

  defp verdict(status, %{"code" => code, "status" => status} = body, answer) when status >= 400 do
    case @refusals do
      %{^code => refusal} -> {:refused, refusal, answer}
      _other -> {:next, reason(status), hint(body)}
    end
  end

  defp verdict(status, _body, _answer), do: {:next, reason(status), nil}

  defp hint(%{"leader" => hint}) when is_binary(hint), do: hint
  defp hint(_body), do: nil

  defp reason(status) when status in [401, 403], do: :unauthorized
  defp reason(408), do: :timeout
  defp reason(429), do: :rate_limited
  defp reason(504), do: :outcome_unknown
  defp reason(status) when status >= 500, do: :unavailable
  defp reason(status) when status in 300..399, do: :redirected
  defp reason(_status), do: :bad_answer
end
