defmodule Tenure.MachineId.Pool do
  # What is asked of a pool, and what may be concluded from its answers.
  #
  # Rules:
  # - A scope that never held anything may take the place of another process of its identity: it is the newcomer. One
  #   that held or lost a grant asks first whether its identity is live elsewhere, and then stays back: a process that
  #   was replaced, or slept through its lease, never fights its successor. What its own token holds is not elsewhere,
  #   though the answer that granted it never arrived.
  # - A RELEASE may be lost, and its token is retired all the same. If its grant is still live when this scope asks again,
  #   that is given back first: ACQUIRE by another token would be refused, or be a take-over.
  # - ACQUIRE is sent with `once`: a token whose grant ended never gets another.
  # - A grant that cannot be used (id too large, clock behind, too little time left) is given back at once.
  # - A lease is lost only if a node of the cluster that granted it says so. Whatever a node has applied or read it
  #   answers with its cluster's id, also that there is no such pool.
  # - Time is counted from before sending, and as if the store's clock ran 1 % fast and this VM's 1 % slow (the store's
  #   rho; the most by which Erlang slows its clock to correct it).
  #
  # Not covered: between the look for others of the identity and ACQUIRE another may start; then the later ACQUIRE wins,
  # the other is told `taken_over`, and it stays back. A grant that this VM never heard of, to a token that it then
  # retired, is somebody else's to it, until it ends.
  @moduledoc false

  alias Tenure.MachineId.{Ask, Budget, Incarnation, Options}
  alias Tenure.NoNoncense.Lease

  # NoNoncense's limits: 9 bits, and 30 s.
  @id_max 511
  @ttl_ms_min 30_000
  # 30 s, the greatest call budget, both clocks, and slack.
  @asked_ms_min 40_000
  @drift_percent 2
  # Between here and the caller's own look at its clock.
  @slack_ms 100
  @clock_wait_ms_max 2_000

  @holders_limit 100
  @holders_pages_max 16
  @json_integer_max 9_007_199_254_740_991

  @type failed :: {:failed, reason :: atom(), detail :: String.t()}

  @doc "A slot for the identity; `avoid`: another than this one. `until`: monotonic ms, up to which it may be relied on."
  @spec acquire(Options.t(), pos_integer(), non_neg_integer() | nil, Budget.deadline()) ::
          {:ok, Lease.t(), until :: integer()} | failed()
  def acquire(options, lease_duration, avoid, deadline) do
    args = %{"identity" => options.identity, "ttl_ms" => asked(options, lease_duration), "once" => true}
    args = if avoid, do: Map.put(args, "avoid", avoid), else: args
    attempt(options, args, deadline, _fresh_tokens = 1)
  end

  defp attempt(options, args, deadline, fresh_tokens) do
    token = Incarnation.token(options.scope)

    with :ok <- alone(options, token, deadline),
         args = Map.merge(args, %{"token" => token, "unix_ms" => &unix_ms/0}),
         {:ok, answer} <- Ask.ask(options, "ACQUIRE", args, deadline) do
      case acquired(answer.body, options, token, answer) do
        {:granted, lease, grant} ->
          usable(options, lease, grant, answer.sent_at, deadline)

        {:refused, :token_used} when fresh_tokens > 0 ->
          Incarnation.retire(options.scope, token)
          attempt(options, args, deadline, fresh_tokens - 1)

        {:refused, :fenced} ->
          Incarnation.retire(options.scope, token)
          {:failed, :fenced, "another process of identity #{inspect(options.identity)} took over"}

        {:refused, reason} ->
          {:failed, reason, detail(answer)}
      end
    else
      failed -> failed(failed)
    end
  end

  @doc "Renews. `:lost` is proof. A token that was retired is not renewed, only asked about."
  @spec renew(Options.t(), Lease.t(), pos_integer(), Budget.deadline()) ::
          {:ok, Lease.t(), until :: integer()} | {:lost, atom()} | failed()
  def renew(options, lease, lease_duration, deadline) do
    args = %{
      "token" => lease.token,
      "fence" => lease.fence,
      "ttl_ms" => asked(options, lease_duration),
      "unix_ms" => &unix_ms/0
    }

    options = %{options | pool: lease.pool}

    if Incarnation.current?(lease.scope, lease.token),
      do: options |> Ask.ask("RENEW", args, deadline) |> renewal(lease),
      else: options |> Ask.ask("HELD", %{"token" => lease.token}, deadline) |> retired(lease)
  end

  # Its RELEASE may be under way yet.
  defp retired({:ok, %{body: %{"result" => true}}}, _lease),
    do: {:failed, :retired, "the lease was given back, and no node has heard of it"}

  defp retired({:ok, %{body: %{"result" => false}} = answer}, lease),
    do: lost(reason(answer.body), lease, answer)

  defp retired(other, lease), do: renewal(other, lease)

  defp renewal({:ok, %{body: %{"result" => %{"status" => "renewed"} = grant}} = answer}, lease),
    do: renewed(grant, lease, answer)

  defp renewal({:ok, %{body: %{"result" => %{"status" => "lost"}}} = answer}, lease),
    do: lost(reason(answer.body), lease, answer)

  defp renewal({:ok, %{body: %{"result" => nil}} = answer}, _lease),
    do: {:failed, reason(answer.body), detail(answer)}

  defp renewal({:ok, answer}, _lease), do: {:failed, :bad_answer, detail(answer)}
  # Deleted: all its grants ended.
  defp renewal({:refused, :no_such_pool, answer}, lease), do: lost(:no_such_pool, lease, answer)
  defp renewal(failed, _lease), do: failed(failed)

  @doc "Gives back; each endpoint is asked once at most. Whatever comes of it, the token is not used again."
  @spec release(Options.t(), Lease.t(), Budget.deadline()) :: :ok | failed()
  def release(options, lease, deadline) do
    Incarnation.retire(lease.scope, lease.token)
    give_back(%{options | pool: lease.pool}, lease.token, lease.fence, deadline, :once)
  end

  defp give_back(options, token, fence, deadline, how) do
    case Ask.ask(options, "RELEASE", %{"token" => token, "fence" => fence}, deadline, how) do
      {:ok, %{body: %{"result" => result}}} when is_boolean(result) -> :ok
      {:ok, answer} -> {:failed, :bad_answer, detail(answer)}
      failed -> failed(failed)
    end
  end

  ## ACQUIRE

  # Whether the identity is live under no grant but those of this scope: the last one that it saw, or one of its token.
  defp alone(options, token, deadline) do
    if Incarnation.new?(options.scope) do
      :ok
    else
      case live(options, :none, deadline, nil, @holders_pages_max) do
        :none -> :ok
        :last -> last_given_back(options, deadline)
        :other -> own(options, token, deadline)
        failed -> failed
      end
    end
  end

  # A repeat if its token is the one in use; else its RELEASE did not arrive.
  defp last_given_back(options, deadline) do
    case Incarnation.retired(options.scope) do
      nil -> :ok
      token -> give_back(options, token, Incarnation.last_fence(options.scope), deadline, :rounds)
    end
  end

  # An ACQUIRE of this token may have been granted, and its answer lost.
  defp own(options, token, deadline) do
    case Ask.ask(options, "HELD", %{"token" => token}, deadline) do
      {:ok, %{body: %{"result" => true}}} -> :ok
      {:ok, %{body: %{"result" => false}}} -> {:failed, :identity_in_use, "by a newer process"}
      {:ok, answer} -> {:failed, :bad_answer, detail(answer)}
      failed -> failed
    end
  end

  # What of the identity is live: nothing, the last grant that was seen, or another.
  defp live(_options, _found, _deadline, _cursor, 0),
    do: {:failed, :pool_too_large, "too many holders to look through"}

  defp live(options, found, deadline, cursor, pages) do
    args = %{"limit" => @holders_limit}
    args = if cursor, do: Map.put(args, "cursor", cursor), else: args

    with {:ok, answer} <- Ask.ask(options, "HOLDERS", args, deadline) do
      case answer.body do
        %{"result" => %{"holders" => holders, "cursor" => cursor}} when is_list(holders) ->
          found = found(holders, options, found)
          last? = found == :other or cursor == nil
          if last?, do: found, else: live(options, found, deadline, cursor, pages - 1)

        _other ->
          {:failed, :bad_answer, detail(answer)}
      end
    end
  end

  defp found(holders, %{identity: identity, scope: scope}, before) do
    last = Incarnation.last_fence(scope)
    fences = for %{"held" => true, "identity" => ^identity, "fence" => fence} <- holders, do: fence

    cond do
      Enum.any?(fences, &(&1 != last)) -> :other
      fences != [] -> :last
      true -> before
    end
  end

  defp acquired(%{"result" => %{} = grant}, options, token, answer) do
    with true <- grant?(grant), true <- grant["identity"] == options.identity do
      Incarnation.granted(options.scope, token, grant["fence"])
      {:granted, lease(options, token, grant, answer.cluster), grant}
    else
      _malformed -> {:refused, :bad_answer}
    end
  end

  defp acquired(%{"result" => nil} = body, _options, _token, _answer), do: {:refused, reason(body)}
  defp acquired(_body, _options, _token, _answer), do: {:refused, :bad_answer}

  defp grant?(grant) do
    integer?(grant["id"], 0) and integer?(grant["fence"], 1) and integer?(grant["ttl_ms"], 0) and
      is_binary(grant["pool"])
  end

  defp integer?(value, least), do: is_integer(value) and value >= least and value <= @json_integer_max

  defp lease(options, token, grant, cluster) do
    %Lease{
      pool: options.pool,
      identity: options.identity,
      scope: options.scope,
      token: token,
      id: grant["id"],
      fence: grant["fence"],
      pool_uuid: grant["pool"],
      cluster: cluster
    }
  end

  defp usable(options, lease, grant, sent_at, deadline) do
    until = until(grant, sent_at)

    with :ok <- in_range(lease.id),
         :ok <- clock_ahead(grant["floor_unix_ms"], deadline),
         :ok <- long_enough(until) do
      {:ok, lease, until}
    else
      {:failed, reason, detail} ->
        _given_back_or_not = release(options, lease, deadline)
        {:failed, reason, detail}
    end
  end

  defp in_range(id) when id <= @id_max, do: :ok

  defp in_range(id),
    do: {:failed, :id_out_of_range, "id #{id}, NoNoncense has 0..#{@id_max}: make the pool smaller"}

  # Earlier holders' clocks stood at `floor` when they could last have used the id.
  defp clock_ahead(floor, deadline) when is_integer(floor) do
    behind = floor - unix_ms()

    cond do
      behind <= 0 ->
        :ok

      behind <= @clock_wait_ms_max and behind + @slack_ms < Budget.left(deadline) ->
        Process.sleep(behind)
        # The wall clock may have been set meanwhile.
        if unix_ms() >= floor, do: :ok, else: behind(floor)

      true ->
        behind(floor)
    end
  end

  defp clock_ahead(_none, _deadline), do: :ok

  defp behind(floor) do
    {:failed, :clock_behind,
     "this clock is #{floor - unix_ms()} ms behind an earlier holder's of the same id"}
  end

  defp long_enough(until) do
    left = until - Budget.now()

    if left >= @ttl_ms_min + @slack_ms,
      do: :ok,
      else: {:failed, :ttl_too_short, "#{left} ms are left of the grant, NoNoncense needs #{@ttl_ms_min}"}
  end

  ## RENEW

  defp renewed(grant, lease, answer) do
    same? = grant?(grant) and grant["pool"] == lease.pool_uuid and grant["id"] == lease.id

    cond do
      not grant?(grant) -> {:failed, :bad_answer, detail(answer)}
      not same? or grant["fence"] != lease.fence -> {:failed, :wrong_pool, detail(answer)}
      true -> kept(lease, until(grant, answer.sent_at))
    end
  end

  # The grant stands, so it is neither lost nor given back: the time that NoNoncense knows of goes on.
  defp kept(lease, until) do
    Incarnation.granted(lease.scope, lease.token, lease.fence)
    with :ok <- long_enough(until), do: {:ok, lease, until}
  end

  defp lost(reason, lease, answer) do
    case witness(reason, lease.cluster, answer.cluster) do
      :ok ->
        Incarnation.retire(lease.scope, lease.token)
        {:lost, lost_reason(reason)}

      :nobody ->
        {:failed, :bad_answer, "#{answer.url} does not say which cluster it is of"}

      :another ->
        {:failed, :wrong_cluster,
         "#{answer.url} is a node of another cluster than the one that granted the lease"}
    end
  end

  # `http` hands over no headers: there is nothing to compare.
  defp witness(_reason, nil, _cluster), do: :ok
  defp witness(_reason, _granted, nil), do: :nobody
  # A restored cluster has another id, and its word counts.
  defp witness(:restored, _granted, _cluster), do: :ok
  defp witness(_reason, cluster, cluster), do: :ok
  defp witness(_reason, _granted, _another), do: :another

  defp lost_reason(:fenced), do: :taken_over
  defp lost_reason(:declined), do: :unknown_lease
  defp lost_reason(reason), do: reason

  ## Both

  @doc "What is asked for: never so little that NoNoncense takes the grant for lost."
  @spec asked(Options.t(), term()) :: pos_integer()
  def asked(options, lease_duration), do: max(options.lease_duration || lease_duration, @asked_ms_min)

  defp until(grant, sent_at), do: sent_at + div(grant["ttl_ms"] * 100, 100 + @drift_percent)

  # The clock that NoNoncense's timestamps are made from.
  defp unix_ms, do: System.system_time(:millisecond)

  @reasons %{
    "exhausted" => :exhausted,
    "identity_in_use" => :identity_in_use,
    "identity_conflict" => :identity_conflict,
    "taken_over" => :fenced,
    "token_used" => :token_used,
    "key_expired" => :key_expired,
    "broken" => :broken,
    "expired" => :expired,
    "not_held" => :not_held,
    "deleted" => :deleted,
    "restored" => :restored
  }

  # Never String.to_atom: atoms are for ever.
  defp reason(%{"reason" => reason}) when is_map_key(@reasons, reason), do: Map.fetch!(@reasons, reason)
  defp reason(_body), do: :declined

  defp failed({:failed, _reason, detail} = failed) when is_binary(detail), do: failed
  defp failed({:refused, reason, answer}), do: {:failed, reason, detail(answer)}

  defp failed({:failed, reason, trail}) do
    {:failed, reason, Enum.map_join(trail, ", ", fn {url, reason} -> "#{url} #{reason}" end)}
  end

  # A node's own words; they never hold a token.
  defp detail(%{body: body, url: url}) do
    words = for name <- ["code", "reason", "detail"], is_binary(body[name]), do: body[name]

    after_ms =
      if is_integer(body["retry_after_ms"]), do: ["retry after #{body["retry_after_ms"]} ms"], else: []

    String.slice(Enum.join([url | words] ++ after_ms, ": "), 0, 500)
  end
end
