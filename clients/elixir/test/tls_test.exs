defmodule Tenure.MachineId.TlsTest do
  # Handshakes are work: alone, so that none is late because other tests work too.
  use ExUnit.Case, async: false

  import StrategyCase
  alias Tenure.NoNoncense.LeaseStrategy

  defp acquire(endpoints, more) do
    options = [endpoints: endpoints, pool: "tls-#{System.unique_integer([:positive])}", identity: "i"]
    LeaseStrategy.acquire(600_000, options ++ more)
  end

  # Since it was asked last.
  defp asked do
    receive do
      {:asked, request} -> [request | asked()]
    after
      0 -> []
    end
  end

  # Certificates of this run alone.
  defp authority(name) do
    key = {:namedCurve, :secp256r1}

    :public_key.pkix_test_data(%{
      server_chain: %{
        root: [key: key],
        intermediates: [],
        peer: [key: key, extensions: [san(name)]]
      },
      client_chain: %{root: [key: key], intermediates: [], peer: [key: key]}
    })
  end

  # subjectAltName: dNSName
  defp san(name), do: {:Extension, {2, 5, 29, 17}, false, [{:dNSName, to_charlist(name)}]}

  defp pem(directory, name, entries) do
    path = Path.join(directory, name)
    File.write!(path, :public_key.pem_encode(entries))
    path
  end

  # The first handshake of a VM loads code; no test is to be late for it.
  setup_all do
    %{server_config: server, client_config: client} = authority("localhost")
    port = Server.start(&Server.granted/1, server)
    options = [cacerts: client[:cacerts]]
    Cluster.eventually(fn -> match?({:ok, _, _, _}, acquire("https://localhost:#{port}", options)) end)
    :ok
  end

  setup do
    directory =
      Path.join(System.tmp_dir!(), "tenure-elixir-#{System.unique_integer([:positive])}-#{System.pid()}")

    File.mkdir_p!(directory)
    on_exit(fn -> File.rm_rf!(directory) end)
    %{server_config: server, client_config: client} = authority("localhost")
    [cert | _] = server[:cacerts]
    {key_type, key} = client[:key]

    %{
      directory: directory,
      server: server,
      client: client,
      # What the client trusts is what its test configuration says.
      cacertfile:
        pem(directory, "ca.pem", for(der <- client[:cacerts], do: {:Certificate, der, :not_encrypted})),
      other: pem(directory, "other.pem", [{:Certificate, cert, :not_encrypted}]),
      certfile: pem(directory, "cert.pem", [{:Certificate, client[:cert], :not_encrypted}]),
      keyfile: pem(directory, "key.pem", [{key_type, key, :not_encrypted}]),
      cacerts: client[:cacerts]
    }
  end

  calm_test "the server's certificate is verified", context do
    port = Server.start(&Server.granted/1, context.server)
    url = "https://localhost:#{port}"
    assert {:ok, 3, _, _} = acquire(url, cacertfile: context.cacertfile)
    assert {:ok, 3, _, _} = acquire(url, cacerts: context.cacerts)
    assert {:ok, 3, _, _} = acquire("tenures://localhost:#{port}", cacertfile: context.cacertfile)
  end

  test "nothing is sent to one that is not", context do
    port = Server.start(&Server.granted/1, context.server)
    # The first try has all of it: a handshake, and enough for a busy host.
    short = [budget_ms: 3_000]
    missing = Path.join(context.directory, "missing.pem")

    # By the system's authorities, by another's, under a name that is not its own, and by a file that is not there.
    for {name, options, reasons} <- [
          {"localhost", [], [:tls, :no_cacerts]},
          {"localhost", [cacertfile: context.other], [:tls]},
          {"127.0.0.1", [cacertfile: context.cacertfile], [:tls]},
          {"localhost", [cacertfile: missing], [:invalid_options]}
        ] do
      calm(fn ->
        assert {:error, reason} = acquire("https://#{name}:#{port}", options ++ short)
        assert reason in reasons
        refute_received {:asked, _request}
      end)
    end
  end

  test "an option that :ssl does not take is a wrong option", context do
    for wrong <- [[versions: [:ssl4]], [ciphers: :all], [depth: -1]] do
      options = [cacertfile: context.cacertfile, ssl: wrong, budget_ms: 1_000]

      calm(fn ->
        assert acquire("https://localhost:#{Server.closed_port()}", options) == {:error, :invalid_options}
      end)
    end
  end

  calm_test "a VM that stops gives back", context do
    answer = fn request ->
      if request =~ "RELEASE", do: Server.http(200, ~s({"result":true})), else: Server.granted(request)
    end

    port = Server.start(answer, context.server)
    vm = Vm.service("https://localhost:#{port}", "ids", "i", [context.cacertfile])
    assert "ok 3 17" = vm.said
    refute Enum.any?(asked(), &(&1 =~ "RELEASE"))
    {:ok, _ms} = Vm.signal(vm, "TERM")
    assert [release] = asked()
    assert release =~ "RELEASE"
  end

  calm_test "a certificate for all names of a domain is good for them" do
    # Known to this VM alone, beside what the host knows.
    :ok = :inet_db.add_host({127, 0, 0, 1}, [~c"node-1.tenure.test"])
    lookup = :inet_db.res_option(:lookup)
    :inet_db.set_lookup([:file | List.delete(lookup, :file)])
    on_exit(fn -> :inet_db.set_lookup(lookup) end)

    %{server_config: server, client_config: client} = authority("*.tenure.test")
    port = Server.start(&Server.granted/1, server)
    assert {:ok, 3, _, _} = acquire("https://node-1.tenure.test:#{port}", cacerts: client[:cacerts])
  end

  calm_test "with a certificate of one's own", context do
    server = context.server ++ [verify: :verify_peer, fail_if_no_peer_cert: true]
    port = Server.start(&Server.granted/1, server)
    url = "https://localhost:#{port}"
    own = [certfile: context.certfile, keyfile: context.keyfile]
    assert {:ok, 3, _, _} = acquire(url, [cacertfile: context.cacertfile] ++ own)
    own = [ssl: Keyword.take(context.client, [:cert, :key])]
    assert {:ok, 3, _, _} = acquire(url, [cacertfile: context.cacertfile] ++ own)
    assert {:error, reason} = acquire(url, cacertfile: context.cacertfile)

    assert reason in [:tls, :closed]
  end
end
