# Another VM that uses the strategy as NoNoncense does. usage: elixir -pa EBIN child.exs URI POOL IDENTITY
#
# Says its process and what ACQUIRE came to, which it repeats as NoNoncense does at boot, then does what it is told on
# stdin: acquire, renew, release; ends with it.
# An empty IDENTITY leaves the choice to the strategy.
alias Tenure.NoNoncense.LeaseStrategy
[uri, pool, identity] = System.argv()
options = [endpoints: uri, pool: pool] ++ if(identity == "", do: [], else: [identity: identity])
Process.flag(:trap_exit, true)
Process.register(self(), MyApp.LeaseManager)

acquire = fn ->
  case LeaseStrategy.acquire(600_000, options) do
    {:ok, id, lease, _ttl} -> {"ok #{id} #{lease.fence}", lease}
    {:error, reason} -> {"error #{reason}", nil}
  end
end

# The first requests of a VM load code, and on a busy host that may be slow.
{text, lease} =
  Enum.reduce_while(1..10, nil, fn _try, _failed ->
    with {"error " <> _reason, nil} = failed <- acquire.(), do: {:cont, failed}, else: (held -> {:halt, held})
  end)

IO.puts("#{System.pid()} #{text}")

Enum.reduce(IO.stream(), lease, fn line, lease ->
  {text, lease} =
    case String.trim(line) do
      "acquire" ->
        acquire.()

      "renew" ->
        case LeaseStrategy.renew(lease, 600_000, options) do
          {:ok, lease, _ttl} -> {"ok", lease}
          {:error, kind, reason} -> {"#{kind} #{reason}", lease}
        end

      "release" ->
        {to_string(LeaseStrategy.release(lease, options)), lease}
    end

  IO.puts(text)
  lease
end)
