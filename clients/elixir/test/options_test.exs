defmodule Tenure.MachineId.OptionsTest do
  use ExUnit.Case, async: false

  alias Tenure.MachineId.{Endpoint, Incarnation, Options}

  defp urls(endpoints) do
    with {:ok, list} <- Endpoint.list(endpoints), do: for(endpoint <- list, do: endpoint.url)
  end

  test "endpoints" do
    assert urls(["http://a:1", "https://b", "c:2", "tenure://d"]) ==
             ["http://a:1", "https://b:443", "http://c:2", "http://d:13378"]

    assert urls("tenure://a:13378,B:1,a:13378") == ["http://a:13378", "http://b:1"]
    assert urls("tenures://a,b:2") == ["https://a:13378", "https://b:2"]
    assert urls("amaquet://a") == ["http://a:13378"]
    assert urls("http://[::1]:8,http://[::2]") == ["http://[::1]:8", "http://[::2]:80"]
    assert urls("https://proxy/tenure/") == ["https://proxy:443/tenure"]

    for wrong <- [
          nil,
          "",
          [],
          "ftp://a",
          "http://",
          "http://u:p@a",
          ["http://a", 1],
          :a,
          "http://a?x=1",
          "http://a b",
          "http://a:0",
          "http://a:65536"
        ] do
      assert {:error, text} = Endpoint.list(wrong), inspect(wrong)
      assert is_binary(text)
    end

    assert urls("http://a:65535") == ["http://a:65535"]

    assert {:error, _} = Endpoint.list(for n <- 1..17, do: "http://h#{n}")
  end

  test "a wrong endpoint is named by its number: it may hold a password" do
    for {wrong, number} <- [
          {"http://u:s3cret@a:1", 1},
          {["http://a:1", "tenure://b:1,u:s3cret@c:1"], 3},
          {["http://a:1", "http://u:s3 cret@b"], 2},
          {"http://s3cret@", 1},
          {"ftp://u:s3cret@a", 1}
        ] do
      assert {:error, text} = Endpoint.list(wrong)
      assert text =~ "endpoint #{number} "
      refute text =~ "cret"
    end
  end

  test "endpoints of the environment" do
    System.put_env("TENURE_URI", "tenure://env:7")
    assert {:ok, %{endpoints: [%{url: "http://env:7"}]}} = Options.new([pool: "p"], "")
    System.delete_env("TENURE_URI")
    assert {:error, _} = Options.new([pool: "p"], "")
  end

  test "a wrong option is named" do
    good = [endpoints: "http://a:1", pool: "p", identity: "i"]
    assert {:ok, _} = Options.new(good, "")

    for {wrong, name} <- [
          {[pool: nil], ":pool"},
          {[pool: ""], ":pool"},
          {[pool: String.duplicate("k", 1025)], ":pool"},
          {[identity: "a\nb"], ":identity"},
          {[identity: :atom], ":identity"},
          {[identity: <<0xFF>>], ":identity"},
          {[identity: String.duplicate("é", 129)], ":identity"},
          {[budget_ms: 4_001], ":budget_ms"},
          {[budget_ms: 499], ":budget_ms"},
          {[release_budget_ms: 2_001], ":release_budget_ms"},
          {[release_budget_ms: 499], ":release_budget_ms"},
          {[lease_duration: 0], ":lease_duration"},
          {[lease_duration: 1.5], ":lease_duration"},
          {[ipfamily: :inet5], ":ipfamily"},
          {[http: fn -> :ok end], ":http"},
          {[certfile: "c"], ":keyfile"},
          {[certfile: "missing.pem", keyfile: "missing.pem"], ":certfile"},
          {[cacertfile: nil], ":cacertfile"},
          {[cacertfile: ~c"ca.pem"], ":cacertfile"},
          {[cacertfile: "missing.pem"], ":cacertfile"},
          {[cacertfile: "a\0b"], ":cacertfile"},
          {[cacertfile: System.tmp_dir!()], ":cacertfile"},
          {[cacerts: nil], ":cacerts"},
          {[cacerts: []], ":cacerts"},
          {[cacerts: "der"], ":cacerts"},
          {[cacerts: [1]], ":cacerts"},
          {[cacerts: ["der" | "der"]], ":cacerts"},
          {[ssl: :x], ":ssl"},
          {[api_key: "a\r\nx: y"], ":api_key"},
          {[api_key: "schlüssel€"], ":api_key"},
          {[pol: "p"], ":pol"}
        ] do
      assert {:error, text} = Options.new(Keyword.merge(good, wrong), ""), inspect(wrong)
      assert text =~ name
    end

    assert {:error, text} = Options.new(good ++ [pool: "q"], "")
    assert text =~ ":pool"
    for none <- [nil, %{}, [1], "pool"], do: assert({:error, _} = Options.new(none, ""))
  end

  test "nothing in ssl loosens the verification" do
    good = [endpoints: "http://a:1", pool: "p", identity: "i"]

    for {name, value} <- [
          verify: :verify_none,
          verify_fun: {fn _, _, state -> {:valid, state} end, nil},
          customize_hostname_check: [match_fun: fn _, _ -> true end],
          partial_chain: fn chain -> {:trusted_ca, hd(chain)} end,
          server_name_indication: :disable,
          allow_any_ca_purpose: true,
          cacerts: ["der"],
          cacertfile: "ca.pem",
          psk_identity: ~c"i",
          user_lookup_fun: {fn _, _, _ -> {:ok, "k"} end, nil},
          srp_identity: {~c"u", ~c"p"},
          ciphers: [%{key_exchange: :ecdh_anon, cipher: :aes_128_cbc, mac: :sha, prf: :default_prf}],
          ciphers: [~c"TLS_DH_anon_WITH_AES_128_CBC_SHA"],
          ciphers: ~c"ADH-AES128-SHA:AECDH-AES128-SHA",
          ciphers: [{:dh_anon, :aes_128_cbc, :sha}],
          ciphers: [<<0, 52>>]
        ] do
      assert {:error, text} = Options.new(good ++ [ssl: [{name, value}]], "")
      assert text =~ inspect(name)
    end

    for right <- [
          [],
          [versions: [:"tlsv1.3"], depth: 2, ciphers: ~c"ECDHE-ECDSA-AES128-GCM-SHA256"],
          [cert: "der", key: {:ECPrivateKey, "der"}],
          [certs_keys: [%{certfile: "c", keyfile: "k"}]]
        ] do
      assert {:ok, %{tls: ^right}} = Options.new(good ++ [ssl: right], "")
    end

    # Two own certificates: one of them would be ignored.
    own = [certfile: __ENV__.file, keyfile: __ENV__.file]
    assert {:ok, _} = Options.new(good ++ own, "")
    assert {:error, text} = Options.new(good ++ own ++ [ssl: [cert: "der", key: {:ECPrivateKey, "der"}]], "")
    assert text =~ ":cert "
  end

  test "an explicit identity is taken as it is" do
    assert {:ok, %{identity: " Ä "}} = Options.new([endpoints: "http://a", pool: "p", identity: " Ä "], "")
  end

  test "without one it is of this VM, never nonode@nohost, stable, and another for another supervisor" do
    identity = fn name ->
      {:ok, options} = Options.new([endpoints: "http://a", pool: "p"], name)
      options.identity
    end

    first = identity.("A.LeaseManager")
    refute Node.alive?()
    assert first =~ ~r"\Avm-[0-9a-f]{24}/A\.LeaseManager\z"
    assert identity.("A.LeaseManager") == first
    assert identity.("B.LeaseManager") != first
  end

  test "a node's name is no identity if every container may have it" do
    for node <- [
          :nonode@nohost,
          :"app@127.0.0.1",
          :"app@127.1.2.3",
          :app@localhost,
          :app@LOCALHOST,
          :"app@localhost.localdomain",
          :"app@::1",
          :"app@0:0:0:0:0:0:0:1"
        ],
        do: refute(Incarnation.telling?(node), inspect(node))

    for node <- [:"app@10.0.0.1", :"app@app-1.app.svc", :"app@host-1", :app@127host, :"app@2001:db8::1"],
        do: assert(Incarnation.telling?(node), inspect(node))
  end
end
