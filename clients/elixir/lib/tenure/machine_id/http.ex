defmodule Tenure.MachineId.Http do
  # One POST over :httpc, the client that comes with Erlang.
  #
  # Its defaults that do not fit are turned off: it follows redirects (a POST would go where the list of endpoints does
  # not say), keeps connections (renewals are minutes apart, a socket closed meanwhile costs a try), and on OTP 25 takes
  # any certificate. It has profiles of its own, so that nobody else's options apply.
  #
  # Not promised: `timeout_ms` does not bound name resolution; who calls this does (Budget).
  @moduledoc false

  alias Tenure.MachineId.{Endpoint, Options}

  @type headers :: [{String.t(), String.t()}]
  @type answer :: {:ok, status :: pos_integer(), headers(), body :: binary()} | {:error, atom()}

  @doc "Sends `body` to `path` of `endpoint`; by the function of the options if they have one."
  @spec post(Options.t(), Endpoint.t(), String.t(), headers(), String.t(), pos_integer()) :: answer()
  def post(%{http: http}, endpoint, path, headers, body, timeout_ms) when is_function(http) do
    headers = [{"content-type", "application/json"} | headers]
    http.(endpoint.url <> path, headers, body, timeout_ms) |> given_answer()
  catch
    _kind, _reason -> {:error, :http_failed}
  end

  def post(options, endpoint, path, headers, body, timeout_ms) do
    with {:ok, ssl} <- ssl(endpoint, options.tls), {:ok, profile} <- profile(family(endpoint, options)) do
      headers =
        for {name, value} <- [{"connection", "close"} | headers], do: {charlist(name), charlist(value)}

      request = {charlist(endpoint.url <> path), headers, ~c"application/json", body}
      http_options = [timeout: timeout_ms, connect_timeout: timeout_ms, autoredirect: false] ++ ssl
      :post |> :httpc.request(request, http_options, [body_format: :binary], profile) |> answer()
    end
  end

  defp answer({:ok, {{_version, status, _phrase}, headers, body}}) do
    {:ok, status, for({name, value} <- headers, do: {String.downcase(to_string(name)), to_string(value)}),
     body}
  end

  defp answer({:error, reason}), do: {:error, reason(reason)}

  # A function of the user may answer anything.
  defp given_answer({:ok, status, headers, body})
       when is_integer(status) and is_list(headers) and is_binary(body) do
    headers = for {name, value} <- headers, do: {name |> to_string() |> String.downcase(), to_string(value)}
    {:ok, status, headers, body}
  end

  defp given_answer({:error, reason}) when is_atom(reason), do: {:error, reason}
  defp given_answer(_other), do: {:error, :http_failed}

  defp reason(:timeout), do: :timeout
  defp reason(:socket_closed_remotely), do: :closed

  defp reason({:failed_connect, details}) when is_list(details) do
    case List.keyfind(Enum.filter(details, &(is_tuple(&1) and tuple_size(&1) == 3)), :inet, 0) do
      {:inet, _family, :econnrefused} -> :refused
      {:inet, _family, :nxdomain} -> :nxdomain
      {:inet, _family, :timeout} -> :timeout
      {:inet, _family, :etimedout} -> :timeout
      {:inet, _family, {:tls_alert, _alert}} -> :tls
      # What :ssl says of its options.
      {:inet, _family, {:options, _wrong}} -> :invalid_options
      {:inet, _family, {:eoptions, _wrong}} -> :invalid_options
      _other -> :unavailable
    end
  end

  defp reason(_other), do: :closed

  defp family(%{host: host}, options), do: if(String.contains?(host, ":"), do: :inet6, else: options.ipfamily)

  # Started once; afterwards this is two messages. Whoever starts it at the same time is welcome. The options are set each
  # time: a profile that its supervisor had to start anew has forgotten them.
  defp profile(family) do
    profile = Map.fetch!(%{inet: :tenure_inet, inet6: :tenure_inet6, inet6fb4: :tenure_inet6fb4}, family)

    with :ok <- running(:inets, :httpc_profile_sup),
         :ok <- running(:ssl, :ssl_sup),
         started when is_tuple(started) <- :inets.start(:httpc, profile: profile),
         true <- match?({:ok, _}, started) or match?({:error, {:already_started, _}}, started),
         :ok <- :httpc.set_options([ipfamily: family], profile) do
      {:ok, profile}
    else
      _not_started -> {:error, :httpc_not_started}
    end
  end

  # Seen by its supervisor. The application controller answers nobody while it stops the VM, and that is when leases are
  # given back; what started before the caller's application is still up then.
  defp running(application, supervisor) do
    if Process.whereis(supervisor), do: :ok, else: started(Application.ensure_all_started(application))
  end

  defp started({:ok, _applications}), do: :ok
  defp started(failed), do: failed

  defp ssl(%{tls?: false}, _tls), do: {:ok, []}

  defp ssl(_endpoint, tls) do
    {own, more} = Keyword.split(tls, [:cacertfile, :cacerts, :certfile, :keyfile])
    files = for {name, value} <- own, do: {name, if(is_binary(value), do: charlist(value), else: value)}

    with {:ok, authorities} <- authorities(own) do
      https = [match_fun: :public_key.pkix_verify_hostname_match_fun(:https)]
      verification = [verify: :verify_peer, customize_hostname_check: https] ++ authorities ++ files
      {:ok, [ssl: [depth: 5] |> Keyword.merge(more) |> Keyword.merge(verification)]}
    end
  end

  defp authorities(own) do
    if Keyword.has_key?(own, :cacertfile) or Keyword.has_key?(own, :cacerts),
      do: {:ok, []},
      else: system_authorities()
  end

  # The system's, from OTP 25 on. Without any, nothing could be verified: then nothing is sent.
  defp system_authorities do
    {:ok, [cacerts: apply(:public_key, :cacerts_get, [])]}
  rescue
    _none -> {:error, :no_cacerts}
  end

  defp charlist(text), do: String.to_charlist(text)
end
