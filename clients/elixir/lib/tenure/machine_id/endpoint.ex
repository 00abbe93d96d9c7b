defmodule Tenure.MachineId.Endpoint do
  # Where a node is reached. Written as a URL (http, https), as `host:port`, or as what TENURE_URI holds:
  # `tenure://a:13378,b:13378` (`tenures` with TLS).
  @moduledoc false

  @port 13_378
  @enforce_keys [:url, :host, :port, :tls?]
  defstruct [:url, :host, :port, :tls?]

  @type t :: %__MODULE__{url: String.t(), host: String.t(), port: :inet.port_number(), tls?: boolean()}

  @count_max 16

  @doc "Parses one string or a list of them. A wrong one is told by its number: it may hold a password."
  @spec list(term()) :: {:ok, [t(), ...]} | {:error, String.t()}
  def list(nil), do: {:error, "no :endpoints, and no TENURE_URI in the environment"}
  def list(uri) when is_binary(uri), do: list([uri])

  def list([_ | _] = uris) do
    with true <- Enum.all?(uris, &is_binary/1),
         parsed = uris |> Enum.flat_map(&split/1) |> Enum.map(&parse/1),
         nil <- Enum.find_index(parsed, &(&1 == :wrong)) do
      endpoints = Enum.uniq(parsed)

      if length(endpoints) <= @count_max,
        do: {:ok, endpoints},
        else: {:error, "more than #{@count_max} :endpoints"}
    else
      false -> {:error, ":endpoints must be a string or a list of strings"}
      at -> {:error, "endpoint #{at + 1} is none; write http://host:port or tenure://a:port,b:port"}
    end
  end

  def list(_other), do: {:error, ":endpoints must be a string or a list of strings"}

  @doc "Whether a node's hint `host:port` means this endpoint."
  @spec named?(t(), String.t()) :: boolean()
  def named?(%{host: host, port: port}, hint) do
    host = if String.contains?(host, ":"), do: "[#{host}]", else: host
    String.downcase(hint) == "#{host}:#{port}"
  end

  # `tenure://a,b` and `http://a,http://b`: where a part has no scheme it has the first one's.
  defp split(uri) do
    scheme = if String.contains?(uri, "://"), do: uri |> String.split("://", parts: 2) |> hd(), else: "tenure"

    for part <- String.split(uri, ","),
        do: if(String.contains?(part, "://"), do: part, else: scheme <> "://" <> part)
  end

  # An endpoint, or :wrong.
  defp parse(text) do
    [scheme, rest] = String.split(text, "://", parts: 2)

    with {tls?, port} <- kind(String.downcase(scheme)),
         # Of a scheme that has no default port.
         {:ok, uri} <- URI.new("node://" <> rest),
         %URI{userinfo: nil, query: nil, fragment: nil, host: host} = uri when is_binary(host) and host != "" <-
           %{uri | port: uri.port || port},
         true <- uri.port in 1..65_535 do
      endpoint(%{uri | scheme: if(tls?, do: "https", else: "http")}, tls?)
    else
      _wrong -> :wrong
    end
  end

  defp kind("tenure"), do: {false, @port}
  defp kind("amaquet"), do: {false, @port}
  defp kind("tenures"), do: {true, @port}
  defp kind("http"), do: {false, 80}
  defp kind("https"), do: {true, 443}
  defp kind(_other), do: :unknown

  defp endpoint(uri, tls?) do
    host = String.downcase(uri.host)
    shown = if String.contains?(host, ":"), do: "[#{host}]", else: host
    path = String.trim_trailing(uri.path || "", "/")
    %__MODULE__{url: "#{uri.scheme}://#{shown}:#{uri.port}#{path}", host: host, port: uri.port, tls?: tls?}
  end
end
