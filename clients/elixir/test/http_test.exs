defmodule Tenure.MachineId.HttpTest do
  use ExUnit.Case, async: true

  import StrategyCase
  alias Tenure.NoNoncense.LeaseStrategy

  defp acquire(endpoints, more \\ []) do
    options = [endpoints: endpoints, pool: "http-#{System.unique_integer([:positive])}", identity: "i"]
    LeaseStrategy.acquire(600_000, options ++ more)
  end

  calm_test "one request, one connection" do
    port = Server.start(&Server.granted/1)
    assert {:ok, 3, lease, _ttl} = acquire("http://127.0.0.1:#{port}", api_key: "k1")
    assert lease.cluster == "00aa"
    assert_received {:asked, request}
    assert [head, body] = String.split(request, "\r\n\r\n", parts: 2)
    assert head =~ ~r"\APOST /v1/OP HTTP/1.1\r\n"

    for header <- ["content-type: application/json", "connection: close", "authorization: Bearer k1"] do
      assert String.downcase(head) =~ String.downcase(header)
    end

    assert head =~ ~r/tenure-timeout-ms: \d+/i
    assert {:ok, %{"operation" => "ACQUIRE"}} = Tenure.MachineId.Json.decode(body)
  end

  calm_test "a name is resolved, and an unknown one is an error like others" do
    port = Server.start(&Server.granted/1)
    assert {:ok, 3, _, _} = acquire(["http://no-such-host.invalid:1", "http://localhost:#{port}"])
    assert {:error, reason} = acquire("http://no-such-host.invalid:1")
    assert reason in [:nxdomain, :timeout, :unavailable]
  end

  test "what goes wrong has a name" do
    for {port, reason} <- [
          {fn -> Server.start(fn _request -> "" end) end, :closed},
          {&Server.closed_port/0, :refused},
          {fn -> Server.start(fn _request -> Process.sleep(:infinity) end) end, :timeout}
        ] do
      calm(fn -> assert acquire("http://127.0.0.1:#{port.()}") == {:error, reason} end)
    end

    port = Server.start(fn _request -> "SSH-2.0-x\r\n" end)
    assert {:error, reason} = acquire("http://127.0.0.1:#{port}")
    assert is_atom(reason)
  end

  test "a redirect is not followed" do
    for status <- [301, 302, 303, 307, 308] do
      calm(fn ->
        elsewhere = Server.start(&Server.granted/1)
        location = "location: http://127.0.0.1:#{elsewhere}/v1/OP\r\n"
        port = Server.start(fn _request -> Server.http(status, "", location) end)
        assert acquire("http://127.0.0.1:#{port}") == {:error, :redirected}
        assert Enum.uniq(asked([])) |> Enum.all?(&(not String.contains?(&1, ":#{elsewhere}\r\n")))
      end)
    end
  end

  defp asked(requests) do
    receive do
      {:asked, request} -> asked([request | requests])
    after
      0 -> requests
    end
  end
end
