defmodule Tenure.MachineId.Options do
  # The strategy's options, checked. A wrong one is an error that names it, never a raise, and never a guess.
  @moduledoc false

  alias Tenure.MachineId.{Endpoint, Incarnation}

  # 200 ms are kept back, and the rest is dealt out: less than this is no time to ask anybody.
  @budget_ms_min 500
  # NoNoncense gives up on a call after 5 s, and on a shutdown likewise.
  @budget_ms_max 4_000
  @release_budget_ms_max 2_000

  @known [
    :endpoints,
    :pool,
    :identity,
    :incarnation,
    :api_key,
    :cacertfile,
    :cacerts,
    :certfile,
    :keyfile,
    :ssl,
    :ipfamily,
    :budget_ms,
    :release_budget_ms,
    :lease_duration,
    :http
  ]
  # These may not be in `ssl`: they decide whom to trust, or have options of their own.
  @verification [
    :verify,
    :verify_fun,
    :partial_chain,
    :customize_hostname_check,
    :server_name_indication,
    :allow_any_ca_purpose,
    :cacerts,
    :cacertfile,
    :certfile,
    :keyfile,
    # In place of certificates.
    :psk_identity,
    :user_lookup_fun,
    :srp_identity
  ]
  # Own certificates that no option covers: of a security module, or several.
  @own_certificates [:cert, :key, :certs_keys]

  @enforce_keys [:endpoints, :pool, :identity, :scope]
  defstruct [
    :endpoints,
    :pool,
    :identity,
    :scope,
    :api_key,
    :lease_duration,
    :http,
    tls: [],
    ipfamily: :inet,
    budget_ms: @budget_ms_max,
    release_budget_ms: @release_budget_ms_max
  ]

  @type t :: %__MODULE__{}

  @doc "The names of all options."
  @spec known() :: [atom(), ...]
  def known, do: @known

  @doc "Of a kind of callback, the time it may take: known before anything is checked, and never above its limit."
  @spec budget_ms(:release | :call, term()) :: pos_integer()
  def budget_ms(:release, options), do: budget(options, :release_budget_ms, @release_budget_ms_max)
  def budget_ms(:call, options), do: budget(options, :budget_ms, @budget_ms_max)

  defp budget(options, name, max) do
    case get(options, name) do
      ms when is_integer(ms) and ms in @budget_ms_min..max//1 -> ms
      _other -> max
    end
  end

  @doc "One option, whatever `options` is."
  @spec get(term(), atom()) :: term()
  def get(options, name) when is_list(options) do
    case List.keyfind(options, name, 0) do
      {^name, value} -> value
      _none -> nil
    end
  end

  def get(_options, _name), do: nil

  @doc "Checks `options` of a process named `process_name`."
  @spec new(term(), String.t()) :: {:ok, t()} | {:error, String.t()}
  def new(options, process_name) do
    if Keyword.keyword?(options),
      do: checked(options, process_name),
      else: {:error, "strategy_opts is no keyword list"}
  end

  defp checked(options, process_name) do
    with :ok <- known(options),
         {:ok, endpoints} <- Endpoint.list(options[:endpoints] || System.get_env("TENURE_URI")),
         {:ok, pool} <- text(options, :pool, 1024, nil),
         {:ok, identity} <-
           text(options, :identity, 256, fn -> Incarnation.default_identity(process_name) end),
         {:ok, incarnation} <- text(options, :incarnation, 256, fn -> nil end),
         {:ok, api_key} <- text(options, :api_key, 1024, fn -> nil end),
         :ok <- latin1(api_key),
         {:ok, tls} <- tls(options),
         :ok <- number(options, :budget_ms, @budget_ms_min..@budget_ms_max),
         :ok <- number(options, :release_budget_ms, @budget_ms_min..@release_budget_ms_max),
         :ok <- number(options, :lease_duration, 1..31_536_000_000),
         :ok <- one_of(options, :ipfamily, [nil, :inet, :inet6, :inet6fb4]),
         :ok <- fun(options[:http]) do
      {:ok,
       %__MODULE__{
         endpoints: endpoints,
         pool: pool,
         identity: identity,
         scope: {pool, identity, process_name, incarnation},
         api_key: api_key,
         lease_duration: options[:lease_duration],
         http: options[:http],
         tls: tls,
         ipfamily: options[:ipfamily] || :inet,
         budget_ms: budget_ms(:call, options),
         release_budget_ms: budget_ms(:release, options)
       }}
    end
  end

  defp known(options) do
    case Keyword.keys(options) -- @known do
      [] -> unique(Keyword.keys(options))
      [name | _] -> {:error, "unknown option #{inspect(name)}"}
    end
  end

  defp unique(names) do
    case names -- Enum.uniq(names) do
      [] -> :ok
      [name | _] -> {:error, "option #{inspect(name)} is given twice"}
    end
  end

  defp text(options, name, bytes_max, default) do
    case options[name] do
      nil when is_function(default) -> {:ok, default.()}
      nil -> {:error, "option #{inspect(name)} is missing"}
      value -> if text?(value, bytes_max), do: {:ok, value}, else: {:error, bad_text(name, bytes_max)}
    end
  end

  defp text?(value, bytes_max) do
    is_binary(value) and byte_size(value) in 1..bytes_max and String.valid?(value) and
      not String.match?(value, ~r/[\x{00}-\x{1F}\x{7F}-\x{9F}]/u)
  end

  defp bad_text(name, max),
    do: "#{inspect(name)} must be a string of 1..=#{max} bytes without control characters"

  # As a header's value goes over the wire.
  defp latin1(nil), do: :ok

  defp latin1(api_key) do
    if Enum.all?(String.to_charlist(api_key), &(&1 <= 0xFF)),
      do: :ok,
      else: {:error, ":api_key must be of Latin-1 characters"}
  end

  defp number(options, name, range) do
    case options[name] do
      nil -> :ok
      value when is_integer(value) -> if value in range, do: :ok, else: {:error, bad_number(name, range)}
      _other -> {:error, bad_number(name, range)}
    end
  end

  defp bad_number(name, first..last//_), do: "#{inspect(name)} must be an integer in #{first}..=#{last}"

  defp one_of(options, name, values) do
    if options[name] in values, do: :ok, else: {:error, "#{inspect(name)} must be one of #{inspect(values)}"}
  end

  defp fun(nil), do: :ok
  defp fun(fun) when is_function(fun, 4), do: :ok
  defp fun(_other), do: {:error, ":http must be a function of (url, headers, body, timeout_ms)"}

  defp tls(options) do
    own = Keyword.take(options, [:cacertfile, :cacerts, :certfile, :keyfile])
    more = Keyword.get(options, :ssl) || []

    with :ok <- together(own), :ok <- files(own), :ok <- authorities(own), :ok <- more(more, own) do
      {:ok, own ++ more}
    end
  end

  defp together(own) do
    if Keyword.has_key?(own, :certfile) == Keyword.has_key?(own, :keyfile),
      do: :ok,
      else: {:error, ":certfile and :keyfile belong together"}
  end

  # nil too is wrong: what was to be trusted is not what the system trusts.
  defp files(own) do
    wrong =
      for {name, path} <- own, name != :cacerts, not (text?(path, 4096) and File.regular?(path)), do: name

    if wrong == [], do: :ok, else: {:error, "#{inspect(hd(wrong))} must be the path of a file that is there"}
  end

  defp authorities(own) do
    case Keyword.fetch(own, :cacerts) do
      :error ->
        :ok

      {:ok, [_ | _] = certificates} ->
        if List.improper?(certificates) or not Enum.all?(certificates, &certificate?/1),
          do: bad_cacerts(),
          else: :ok

      {:ok, _other} ->
        bad_cacerts()
    end
  end

  # DER, or as of :public_key.cacerts_get/0.
  defp certificate?(der), do: is_binary(der) or match?({:cert, _der, _decoded}, der)

  defp bad_cacerts, do: {:error, ":cacerts must be a list of certificates"}

  defp more(more, own) do
    cond do
      not Keyword.keyword?(more) ->
        {:error, ":ssl must be a keyword list"}

      name = Enum.find(@verification, &Keyword.has_key?(more, &1)) ->
        {:error,
         ":ssl must not hold #{inspect(name)}: verification is not optional, certificates have options"}

      Enum.any?(Keyword.get_values(more, :ciphers), &anonymous?/1) ->
        {:error, ":ssl must not hold :ciphers without certificates, or as binaries"}

      name = own[:certfile] && Enum.find(@own_certificates, &Keyword.has_key?(more, &1)) ->
        {:error, ":ssl must not hold #{inspect(name)} beside :certfile"}

      true ->
        :ok
    end
  end

  # With those anybody could be the node. A suite is a map, a tuple or a name; several names are one string, with colons
  # between; a binary says nothing.
  defp anonymous?(ciphers) do
    text = inspect(ciphers, limit: :infinity, printable_limit: :infinity)
    text =~ ~r/anon|ADH|AECDH/ or text =~ "<<"
  end
end
