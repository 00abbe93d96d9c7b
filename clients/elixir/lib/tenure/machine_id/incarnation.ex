defmodule Tenure.MachineId.Incarnation do
  # What this VM is, towards the store: its secret, and for each scope (pool, identity, name of the asking process) the
  # token in use, and the last grant seen: its fence, and by which token it was asked for.
  #
  # Invariants: a token is the same until it is retired, so that ACQUIRE may be repeated; once retired it is never used
  # again but to give back what it may still hold, so that a RELEASE or ACQUIRE which arrives late meets nobody; another
  # VM, and another named process of this one, never has the same token.
  #
  # Everything lives in :persistent_term and :atomics, since no process is ours. It is written once for a scope.
  #
  # Not covered: a VM that is copied while it runs (a restored memory snapshot) is two holders of one token.
  @moduledoc false

  @token_number 1
  @last_fence 2
  @last_number 3

  @type scope ::
          {pool :: String.t(), identity :: String.t(), name :: String.t(), incarnation :: String.t() | nil}

  @doc "The registered name of this process, or an empty string."
  @spec process_name() :: String.t()
  def process_name do
    case Process.info(self(), :registered_name) do
      {:registered_name, name} when is_atom(name) and name != [] -> inspect(name)
      _none -> ""
    end
  end

  @doc "An identity where none is given: by the node's name if that tells it apart, else of this VM alone. Decided once."
  @spec default_identity(String.t()) :: String.t()
  def default_identity(name) do
    once({__MODULE__, :identity, name}, fn ->
      base =
        if telling?(node()),
          do: Atom.to_string(node()),
          else: "vm-" <> Base.encode16(random(12), case: :lower)

      if name == "", do: base, else: base <> "/" <> name
    end)
  end

  @doc "Whether a node's name tells it apart. Without one it does not, nor with a loopback host: that is in each container."
  @spec telling?(node()) :: boolean()
  def telling?(node) do
    [_name, host] = node |> Atom.to_string() |> String.downcase() |> String.split("@", parts: 2)

    case :inet.parse_address(String.to_charlist(host)) do
      {:ok, {127, _, _, _}} -> false
      {:ok, {0, 0, 0, 0, 0, 0, 0, 1}} -> false
      {:ok, {0, 0, 0, 0, 0, 0xFFFF, high, _}} -> high not in 0x7F00..0x7FFF
      {:ok, _address} -> true
      {:error, _name} -> not String.starts_with?(host, ["nohost", "localhost", "ip6-localhost"])
    end
  end

  @doc "The token of this scope."
  @spec token(scope()) :: String.t()
  def token(scope), do: token(scope, :atomics.get(record(scope), @token_number))

  @doc "Whether `token` is this scope's, and not retired."
  @spec current?(scope(), String.t()) :: boolean()
  def current?(scope, token), do: token(scope) == token

  @doc "Ends the use of `token`. Does nothing if it is not in use."
  @spec retire(scope(), String.t()) :: :ok
  def retire(scope, token) do
    record = record(scope)
    number = :atomics.get(record, @token_number)

    if token(scope, number) == token do
      :atomics.compare_exchange(record, @token_number, number, number + 1)
    end

    :ok
  end

  @doc "A grant to `token` was seen."
  @spec granted(scope(), String.t(), non_neg_integer()) :: :ok
  def granted(scope, token, fence) do
    record = record(scope)
    number = :atomics.get(record, @token_number)
    # Another process of the scope may have retired it meanwhile.
    number = if token(scope, number) == token, do: number, else: max(0, number - 1)
    :atomics.put(record, @last_number, number)
    :atomics.put(record, @last_fence, fence)
  end

  @doc "The token of the last grant seen, if it was retired: what it holds is to be given back."
  @spec retired(scope()) :: String.t() | nil
  def retired(scope) do
    record = record(scope)
    number = :atomics.get(record, @last_number)
    if number != :atomics.get(record, @token_number), do: token(scope, number)
  end

  @doc "The fence of the last grant seen, 0 without one."
  @spec last_fence(scope()) :: non_neg_integer()
  def last_fence(scope), do: :atomics.get(record(scope), @last_fence)

  @doc "Whether this scope has neither held nor lost anything: only then may it take the place of another."
  @spec new?(scope()) :: boolean()
  def new?(scope), do: last_fence(scope) == 0 and :atomics.get(record(scope), @token_number) == 0

  defp token({pool, identity, name, incarnation}, number) do
    secret = incarnation || once({__MODULE__, :secret}, fn -> random(32) end)
    parts = for part <- [secret, pool, identity, name], do: [<<byte_size(part)::32>>, part]
    :sha256 |> :crypto.hash([parts, <<number::64>>]) |> Base.url_encode64(padding: false)
  end

  defp record(scope), do: once({__MODULE__, :record, scope}, fn -> :atomics.new(3, signed: false) end)

  # Two processes may come at the same time; the lock is on this node alone.
  defp once(key, make) do
    case :persistent_term.get(key, nil) do
      nil -> :global.trans({key, self()}, fn -> get_or_put(key, make) end, [node()])
      found -> found
    end
  end

  defp get_or_put(key, make) do
    case :persistent_term.get(key, nil) do
      nil -> tap(make.(), &:persistent_term.put(key, &1))
      found -> found
    end
  end

  defp random(bytes), do: :crypto.strong_rand_bytes(bytes)
end
