defmodule Proxy do
  # Stands between a client and a node, and does what networks do. For one request a connection, which is how the
  # client asks.
  #
  # pass · hang: takes the connection, never answers · {:slow, ms}: answers late · drop: the node's answer is taken, and
  # lost · {:drop, text}: only the answer to what holds the text is lost · reset: closed with RST · garbage: an answer
  # that is none · refuse: nobody listens

  @doc "In front of `port`; does the first of `modes` for the first connection, and so on, the last one for ever."
  def start(port, modes) do
    caller = self()
    pid = spawn_link(fn -> listen(caller, port, List.wrap(modes)) end)
    receive do: ({^pid, port} -> "http://127.0.0.1:#{port}")
  end

  defp listen(caller, _port, [:refuse]) do
    send(caller, {self(), Server.closed_port()})
    # The port is taken for as long as this process lives.
    Process.sleep(:infinity)
  end

  defp listen(caller, port, modes) do
    {:ok, listener} = :gen_tcp.listen(0, [:binary, active: false, reuseaddr: true, ip: {127, 0, 0, 1}])
    {:ok, own} = :inet.port(listener)
    send(caller, {self(), own})
    accept(listener, port, modes)
  end

  defp accept(listener, port, [mode | modes]) do
    {:ok, socket} = :gen_tcp.accept(listener)
    pid = spawn(fn -> receive do: (:yours -> serve(mode, socket, port)) end)
    :ok = :gen_tcp.controlling_process(socket, pid)
    send(pid, :yours)
    accept(listener, port, if(modes == [], do: [mode], else: modes))
  end

  defp serve(:hang, socket, _port) do
    # Until the client gives up.
    _ = request(socket, "")
    :gen_tcp.recv(socket, 0)
  end

  defp serve(:reset, socket, _port) do
    _ = request(socket, "")
    :inet.setopts(socket, linger: {true, 0})
    :gen_tcp.close(socket)
  end

  defp serve(:garbage, socket, _port) do
    _ = request(socket, "")
    :gen_tcp.send(socket, Server.http(200, "<html>hello</html>"))
    :gen_tcp.close(socket)
  end

  defp serve(mode, socket, port) do
    with {:ok, request} <- request(socket, ""),
         {:ok, node} <- :gen_tcp.connect({127, 0, 0, 1}, port, [:binary, active: false]),
         :ok <- :gen_tcp.send(node, request) do
      answer = all(node, "")
      with {:slow, ms} <- mode, do: Process.sleep(ms)
      unless drop?(mode, request), do: :gen_tcp.send(socket, answer)
    end

    :gen_tcp.close(socket)
  end

  defp drop?({:drop, text}, request), do: String.contains?(request, text)
  defp drop?(mode, _request), do: mode == :drop

  defp request(socket, got) do
    with {:ok, more} <- :gen_tcp.recv(socket, 0) do
      got = got <> more

      with [head, body] <- String.split(got, "\r\n\r\n", parts: 2),
           [_, length] <- Regex.run(~r/content-length: *(\d+)/i, head),
           true <- byte_size(body) >= String.to_integer(length) do
        {:ok, got}
      else
        _not_whole -> request(socket, got)
      end
    end
  end

  # The client asked the node to close.
  defp all(node, got) do
    case :gen_tcp.recv(node, 0) do
      {:ok, more} -> all(node, got <> more)
      {:error, _closed} -> got
    end
  end
end
