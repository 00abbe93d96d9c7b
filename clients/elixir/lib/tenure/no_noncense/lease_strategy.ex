defmodule Tenure.NoNoncense.LeaseStrategy do
  @moduledoc """
  A machine ID strategy for NoNoncense (2.0) that leases the ID from a pool of a tenure cluster.

      children = [
        {NoNoncense.MachineId,
         strategy: Tenure.NoNoncense.LeaseStrategy,
         strategy_opts: [
           endpoints: ["http://a:13378", "http://b:13378", "http://c:13378"],
           pool: "ids",
           identity: System.fetch_env!("POD_NAME")
         ],
         lease_duration: :timer.minutes(30),
         renew_interval: :timer.minutes(1),
         instances: [[base_key: System.fetch_env!("BASE_KEY")]]}
      ]

  The README has the options, the reasons, and what is not covered.

  No callback raises, exits or throws, or takes longer than 4 s (`release/2`: 2 s); none leaves a message or a link
  behind. All reasons are atoms.
  """

  alias Tenure.MachineId.{Budget, Incarnation, Options, Pool}
  alias Tenure.NoNoncense.Lease
  require Logger

  # Only where it is loaded: this file compiles, and works, without NoNoncense.
  if Code.ensure_loaded?(NoNoncense.MachineId.Strategy) do
    @behaviour NoNoncense.MachineId.Strategy
  end

  # NoNoncense's own: it takes a shorter grant for a lost one, and stops using an ID so long before the grant ends.
  @ttl_ms_min 30_000
  @expiry_margin_ms 10_000
  # Within what Budget keeps back.
  @log_ms_max 50

  @doc "Leases a machine ID: the one this identity had, wherever that is possible."
  @spec acquire(pos_integer(), keyword()) :: {:ok, 0..511, Lease.t(), pos_integer()} | {:error, atom()}
  def acquire(lease_duration, strategy_opts) do
    guarded({:error, :internal}, fn -> acquired(lease_duration, strategy_opts) end)
  end

  defp acquired(lease_duration, strategy_opts) do
    avoid = avoid(strategy_opts)
    outcome = call(:call, strategy_opts, &Pool.acquire(&1, lease_duration, avoid, &2))

    with {:ok, lease, until} <- outcome, {:ok, ttl_ms} <- left(until) do
      remember(strategy_opts, lease, ttl_ms)
      {:ok, lease.id, lease, ttl_ms}
    else
      failed -> {:error, told(:acquire, failed, strategy_opts)}
    end
  end

  @doc "Renews a lease. `:lost` is a node's proof; whatever else goes wrong is `:retry`."
  @spec renew(Lease.t(), pos_integer(), keyword()) ::
          {:ok, Lease.t(), pos_integer()} | {:error, :lost, atom()} | {:error, :retry, atom()}
  def renew(lease, lease_duration, strategy_opts)

  def renew(%Lease{} = lease, lease_duration, strategy_opts) do
    guarded({:error, :retry, :internal}, fn -> renewed(lease, lease_duration, strategy_opts) end)
  end

  def renew(_not_ours, _lease_duration, _strategy_opts), do: {:error, :retry, :invalid_lease}

  defp renewed(lease, lease_duration, strategy_opts) do
    outcome = call(:call, strategy_opts, &Pool.renew(&1, lease, lease_duration, &2))

    with {:ok, lease, until} <- outcome, {:ok, ttl_ms} <- left(until) do
      remember(strategy_opts, lease, ttl_ms)
      {:ok, lease, ttl_ms}
    else
      {:lost, reason} ->
        forget(strategy_opts)
        {:error, :lost, reason}

      failed ->
        {:error, :retry, told(:renew, failed, strategy_opts)}
    end
  end

  @doc "Gives a lease back, if that can be done at once."
  @spec release(Lease.t(), keyword()) :: :ok
  def release(lease, strategy_opts)

  def release(%Lease{} = lease, strategy_opts) do
    guarded(:ok, fn -> released(lease, strategy_opts) end)
    :ok
  end

  def release(_not_ours, _strategy_opts), do: :ok

  defp released(lease, strategy_opts) do
    forget(strategy_opts)

    with failed when failed != :ok <- call(:release, strategy_opts, &Pool.release(&1, lease, &2)) do
      told(:release, failed, strategy_opts)
    end
  end

  @doc "False: another ID may come of asking again."
  @spec deterministic?() :: false
  def deterministic?, do: false

  # What is left to go wrong here is a defect; it must not end NoNoncense's process, which would release the ID.
  defp guarded(otherwise, work) do
    work.()
  catch
    _kind, _reason -> otherwise
  end

  # All but the way there and back happens in a process of its own, which ends at the budget.
  defp call(kind, strategy_opts, work) do
    name = Incarnation.process_name()

    run =
      Budget.run(Options.budget_ms(kind, strategy_opts), fn deadline ->
        case Options.new(strategy_opts, name) do
          {:ok, options} -> work.(options, deadline)
          {:error, detail} -> {:failed, :invalid_options, detail}
        end
      end)

    case run do
      {:ok, outcome} -> outcome
      {:error, reason} -> {:failed, reason, "the call's budget"}
    end
  end

  defp left(until) do
    case until - Budget.now() do
      ttl_ms when ttl_ms >= @ttl_ms_min -> {:ok, ttl_ms}
      ttl_ms -> {:failed, :ttl_too_short, "#{ttl_ms} ms are left"}
    end
  end

  # NoNoncense logs and counts the reason; this line says where it comes from. A logger that has too much to do, or
  # cannot write, makes whoever logs wait.
  defp told(callback, {:failed, reason, detail}, strategy_opts) do
    text = "tenure: #{callback} of pool #{inspect(Options.get(strategy_opts, :pool))}: #{reason}: #{detail}"
    _said_or_not = Budget.limited(Budget.now() + @log_ms_max, fn -> Logger.warning(text) end)
    reason
  end

  ## Conflict signal
  #
  # NoNoncense asks again for an ID before its own expiry of the last, without having been told :lost, only if somebody
  # outside told it that the ID is in use elsewhere. It does not say so. So what it knows is kept beside it, in its own
  # process (one that is started again knows nothing, and gets the sticky ID): the ID, and until when it relies on it.
  # The ID is avoided until another is granted.

  defp avoid(strategy_opts) do
    case Process.get(key(strategy_opts)) do
      %{id: id, avoid?: true} -> id
      %{id: id, expires_at: expires_at} -> if Budget.now() < expires_at, do: avoid(strategy_opts, id)
      nil -> nil
    end
  end

  defp avoid(strategy_opts, id) do
    Process.put(key(strategy_opts), %{id: id, avoid?: true})
    id
  end

  defp remember(strategy_opts, lease, ttl_ms) do
    Process.put(key(strategy_opts), %{id: lease.id, expires_at: Budget.now() + ttl_ms - @expiry_margin_ms})
  end

  defp forget(strategy_opts), do: Process.delete(key(strategy_opts))

  defp key(strategy_opts),
    do: {__MODULE__, Options.get(strategy_opts, :pool), Options.get(strategy_opts, :identity)}
end
