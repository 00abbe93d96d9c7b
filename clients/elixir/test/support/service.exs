# Another VM, whose application uses the strategy as NoNoncense does: a supervised process that traps exits holds the
# lease, and gives it back when it is ended. usage: elixir -pa EBIN service.exs URI POOL IDENTITY [CACERTFILE]
#
# Says its process and what ACQUIRE came to, which it repeats as NoNoncense does at boot, and how long its RELEASE took and
# for how long this VM stood still meanwhile.
# It stops by SIGTERM, or by System.stop if told `stop` on stdin; it is halted with its stdin.
defmodule Service do
  use Application
  use GenServer

  alias Tenure.NoNoncense.LeaseStrategy

  @impl Application
  def start(_type, options) do
    # Not the 5 s of others: a host that stands still would keep it from saying how long it took, which is what is judged.
    child = %{id: __MODULE__, start: {__MODULE__, :start_link, [options]}, shutdown: 30_000}
    Supervisor.start_link([child], strategy: :one_for_one)
  end

  def start_link(options), do: GenServer.start_link(__MODULE__, options, name: __MODULE__)

  @impl GenServer
  def init(options) do
    Process.flag(:trap_exit, true)
    {:ok, id, lease} = acquire(options, 10)
    IO.puts("#{System.pid()} ok #{id} #{lease.fence}")
    {:ok, {lease, options}}
  end

  # The first requests of a VM load code, and on a busy host that may be slow.
  defp acquire(options, tries) do
    case LeaseStrategy.acquire(600_000, options) do
      {:ok, id, lease, _ttl} -> {:ok, id, lease}
      {:error, _reason} when tries > 1 -> acquire(options, tries - 1)
      failed -> failed
    end
  end

  @impl GenServer
  def terminate(_reason, {lease, options}) do
    watch = spawn_link(fn -> watch(0) end)
    {us, :ok} = :timer.tc(fn -> LeaseStrategy.release(lease, options) end)
    send(watch, {:stood_still_ms, self()})
    stood_still_ms = receive do: ({^watch, ms} -> ms)
    IO.puts("released in #{div(us, 1000)} ms, #{stood_still_ms} ms stood still")
  end

  # The most by which a timer was late.
  defp watch(worst_ms) do
    {us, :ok} = :timer.tc(fn -> Process.sleep(20) end)
    worst_ms = max(worst_ms, div(us, 1000) - 20)

    receive do
      {:stood_still_ms, caller} -> send(caller, {self(), worst_ms})
    after
      0 -> watch(worst_ms)
    end
  end
end

[uri, pool, identity | more] = System.argv()
tls = for file <- more, do: {:cacertfile, file}
options = [endpoints: uri, pool: pool, identity: identity] ++ tls

# What mix writes of a project that depends on this one.
:ok =
  :application.load(
    {:application, :service,
     mod: {Service, options},
     modules: [Service],
     registered: [Service],
     applications: [:kernel, :stdlib, :elixir, :logger, :tenure_machine_id]}
  )

{:ok, _started} = Application.ensure_all_started(:service)

for "stop\n" <- IO.stream(), do: System.stop()
