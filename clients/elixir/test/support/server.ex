defmodule Server do
  # A TCP or TLS server for one connection after another, whose behaviour is a function of the connection and what was
  # asked. To see what really goes over the wire.

  @doc "Listens on a free port of 127.0.0.1; `answer` gets the request as text and says what is sent back."
  def start(answer, tls \\ nil) do
    caller = self()
    pid = spawn_link(fn -> listen(caller, answer, tls) end)
    receive do: ({^pid, port} -> port)
  end

  defp listen(caller, answer, tls) do
    options = [:binary, active: false, reuseaddr: true, ip: {127, 0, 0, 1}]

    {:ok, listener} = if tls, do: :ssl.listen(0, options ++ tls), else: :gen_tcp.listen(0, options)
    {:ok, {_address, port}} = if tls, do: :ssl.sockname(listener), else: :inet.sockname(listener)
    send(caller, {self(), port})
    accept(listener, caller, answer, tls)
  end

  defp accept(listener, caller, answer, nil) do
    {:ok, socket} = :gen_tcp.accept(listener)
    serve(:gen_tcp, socket, caller, answer)
    accept(listener, caller, answer, nil)
  end

  defp accept(listener, caller, answer, tls) do
    {:ok, socket} = :ssl.transport_accept(listener)

    case :ssl.handshake(socket, 5_000) do
      {:ok, socket} -> serve(:ssl, socket, caller, answer)
      {:error, _reason} -> send(caller, :no_handshake)
    end

    accept(listener, caller, answer, tls)
  end

  defp serve(transport, socket, caller, answer) do
    with {:ok, request} <- request(transport, socket, "") do
      send(caller, {:asked, request})
      transport.send(socket, answer.(request))
    end

    transport.close(socket)
  end

  # Head, and as much of a body as it announces.
  defp request(transport, socket, got) do
    with {:ok, more} <- transport.recv(socket, 0, 5_000) do
      got = got <> more
      if whole?(got), do: {:ok, got}, else: request(transport, socket, got)
    end
  end

  defp whole?(got) do
    with [head, body] <- String.split(got, "\r\n\r\n", parts: 2),
         [_, length] <- Regex.run(~r/content-length: *(\d+)/i, head) do
      byte_size(body) >= String.to_integer(length)
    else
      _not_yet -> false
    end
  end

  @doc "An HTTP answer."
  def http(status, text, headers \\ "") do
    "HTTP/1.1 #{status} X\r\ncontent-type: application/json\r\n#{headers}" <>
      "content-length: #{byte_size(text)}\r\n\r\n#{text}"
  end

  @doc "An answer that grants ID 3 with fence 17 to whoever asks."
  def granted(request) do
    [_, identity] = Regex.run(~r/"identity":"([^"]*)"/, request)
    {:ok, 200, _headers, text} = Fake.granted(3, 17, %{"identity" => ~s("#{identity}")})
    http(200, text, "Tenure-Cluster: 00aa\r\n")
  end

  @doc "A port on which nothing listens, nor will as long as the caller lives: it is bound."
  def closed_port do
    {:ok, socket} = :socket.open(:inet, :stream, :tcp)
    :ok = :socket.bind(socket, %{family: :inet, addr: {127, 0, 0, 1}, port: 0})
    {:ok, %{port: port}} = :socket.sockname(socket)
    port
  end
end
