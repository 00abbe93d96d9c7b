defmodule SupportTest do
  # What the tests themselves rest on.
  use ExUnit.Case, async: true

  test "a command whose answer was lost, and is repeated, counts as done" do
    for {command, again} <- [
          {"CREATE", {409, ~s({"code":"already_exists","status":409})}},
          {"OP", {200, ~s({"result":false,"reason":"not_held"})}},
          {"DEL", {200, ~s({"result":0})}}
        ] do
      {:ok, answers} = Agent.start_link(fn -> [{504, ~s({"code":"outcome_unknown","status":504})}, again] end)

      port =
        Server.start(fn _request ->
          {status, text} = Agent.get_and_update(answers, fn [first | rest] -> {first, rest} end)
          Server.http(status, text, "connection: close\r\n")
        end)

      done = Cluster.command(%Cluster{urls: ["http://127.0.0.1:#{port}"]}, command, %{})
      assert done["result"] in [true, 1]
      assert Agent.get(answers, & &1) == []
    end
  end

  test "a command that was refused at its first try is refused" do
    port = Server.start(fn _request -> Server.http(409, ~s({"code":"already_exists","status":409})) end)
    cluster = %Cluster{urls: ["http://127.0.0.1:#{port}"]}
    assert %{"code" => "already_exists"} = Cluster.command(cluster, "CREATE", %{})
  end
end
