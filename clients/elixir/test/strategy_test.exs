defmodule StuckLogger do
  # A handler of Erlang's logger that never returns, for what is said about one pool.
  def log(event, %{config: pool}) do
    if inspect(event.msg) =~ pool, do: Process.sleep(:infinity)
  end
end

defmodule Tenure.NoNoncense.LeaseStrategyTest do
  use ExUnit.Case, async: true

  import StrategyCase
  alias Tenure.NoNoncense.{Lease, LeaseStrategy}

  @duration 600_000
  @max_ms 4_000
  # By which a busy host may wake a test too late. With it a call of 4 s is still below NoNoncense's limit of 5 s.
  @late_ms 900

  test "is not deterministic: NoNoncense asks again after a loss" do
    assert LeaseStrategy.deterministic?() == false
  end

  describe "acquire" do
    calm_test "asks for the identity, once, with the token, the clock and its time" do
      {fake, options} = start([Fake.granted(3, 17)], api_key: "k1")
      asked_from = System.system_time(:millisecond)
      assert {:ok, 3, %Lease{id: 3, fence: 17} = lease, ttl} = LeaseStrategy.acquire(@duration, options)
      asked_until = System.system_time(:millisecond)
      # Less what the call took, which is its budget at most.
      assert ttl in (588_235 - @max_ms)..588_235
      refute inspect(lease) =~ lease.token

      assert [%{operation: "ACQUIRE", url: "http://a:1/v1/OP", args: args, headers: headers} = request] =
               Fake.asked(fake)

      assert request.pool == options[:pool]
      assert %{"identity" => "pod-1", "ttl_ms" => @duration, "once" => true} = args
      assert args["token"] == lease.token
      assert args["unix_ms"] in asked_from..asked_until
      refute Map.has_key?(args, "avoid")
      assert headers["authorization"] == "Bearer k1"
      assert headers["content-type"] == "application/json"
      assert String.to_integer(headers["tenure-timeout-ms"]) == request.timeout_ms
    end

    calm_test "tells the clock as it is at each try" do
      caller = self()

      late = fn _request ->
        Process.sleep(300)
        send(caller, {:tried, System.system_time(:millisecond)})
        {:error, :closed}
      end

      {fake, options} = start([late, Fake.granted(3, 17), late, Fake.renewed(3, 17)])
      assert {:ok, 3, lease, _ttl} = LeaseStrategy.acquire(@duration, options)
      assert {:ok, ^lease, _ttl} = LeaseStrategy.renew(lease, @duration, options)

      for [_late, again] <- Enum.chunk_every(Fake.asked(fake), 2) do
        assert_received {:tried, at}
        assert again.args["unix_ms"] >= at
      end
    end

    calm_test "asks for 40 s at least, and for lease_duration of its own options" do
      {fake, options} = start([Fake.granted(3, 17, %{"ttl_ms" => 40_000})])
      assert {:ok, 3, _lease, ttl} = LeaseStrategy.acquire(10_000, options)
      assert ttl in (39_215 - @max_ms)..39_215
      assert [%{args: %{"ttl_ms" => 40_000}}] = Fake.asked(fake)

      {fake, options} = start([Fake.granted(3, 17)], lease_duration: 700_000)
      assert {:ok, 3, _lease, _ttl} = LeaseStrategy.acquire(10_000, options)
      assert [%{args: %{"ttl_ms" => 700_000}}] = Fake.asked(fake)
    end

    calm_test "the time since before sending is not in the ttl" do
      slow = fn _request ->
        Process.sleep(700)
        Fake.granted(3, 17, %{"ttl_ms" => 102_000})
      end

      # One endpoint: it has all the time.
      {_fake, options} = start([slow], endpoints: ["http://a:1"])
      assert {:ok, 3, _lease, ttl} = LeaseStrategy.acquire(@duration, options)
      assert ttl in 96_000..99_300
    end

    calm_test "a grant too short for NoNoncense is given back, and never returned" do
      for ttl_ms <- [1, 29_999, 30_000, 30_600] do
        {fake, options} = start([Fake.granted(3, 17, %{"ttl_ms" => ttl_ms}), Fake.released()])
        assert LeaseStrategy.acquire(@duration, options) == {:error, :ttl_too_short}
        assert [%{args: acquire}, %{operation: "RELEASE", args: release}] = Fake.asked(fake)
        assert release == %{"token" => acquire["token"], "fence" => 17}
      end
    end

    calm_test "an ID of more than nine bits is given back" do
      {fake, options} = start([Fake.granted(512, 17), Fake.released()])
      assert LeaseStrategy.acquire(@duration, options) == {:error, :id_out_of_range}
      assert Fake.operations(fake) == ["ACQUIRE", "RELEASE"]

      {_fake, options} = start([Fake.granted(511, 17)])
      assert {:ok, 511, _lease, _ttl} = LeaseStrategy.acquire(@duration, options)
    end

    calm_test "repeated it is the same request by the same token, in other processes too" do
      timeout = {:error, :timeout}
      {fake, options} = start([timeout, timeout, Fake.granted(3, 17)])
      assert {:ok, 3, _lease, _ttl} = LeaseStrategy.acquire(@duration, options)
      Fake.push(fake, [Fake.holders([{3, "pod-1", 17}]), Fake.granted(3, 17)])
      assert {:ok, 3, _lease, _ttl} = in_process(fn -> LeaseStrategy.acquire(@duration, options) end)

      tokens = for %{operation: "ACQUIRE", args: args} <- Fake.asked(fake), do: args["token"]
      assert [_, _, _, _] = tokens
      assert [token] = Enum.uniq(tokens)
      assert byte_size(token) == 43
    end

    calm_test "another pool, identity, incarnation or process name is another token" do
      token = fn more, work ->
        {fake, options} = start([Fake.granted(3, 17, %{"identity" => ~s("#{more[:identity]}")})], more)
        {:ok, 3, lease, _ttl} = work.(fn -> LeaseStrategy.acquire(@duration, options) end)
        assert [_] = Fake.asked(fake)
        lease.token
      end

      here = fn work -> work.() end

      named = fn work ->
        in_process(fn ->
          Process.register(self(), :"manager_#{System.unique_integer([:positive])}")
          work.()
        end)
      end

      base = [pool: "tokens", identity: "pod-1", incarnation: "i1"]

      tokens = [
        token.(base, here),
        token.(Keyword.put(base, :pool, "tokens2"), here),
        token.(Keyword.put(base, :identity, "pod-2"), here),
        token.(Keyword.put(base, :incarnation, "i2"), here),
        token.(base, named)
      ]

      assert tokens == Enum.uniq(tokens)
    end

    calm_test "refusals are atoms" do
      for {reply, reason} <- [
            {Fake.nothing("exhausted"), :exhausted},
            {Fake.nothing("identity_in_use"), :identity_in_use},
            {Fake.nothing("identity_conflict"), :identity_conflict},
            {Fake.nothing("key_expired"), :key_expired},
            {Fake.nothing("broken"), :broken},
            {Fake.nothing("something_new"), :declined},
            {Fake.json(~s({"result":null})), :declined},
            {Fake.problem(404, "no_such_key"), :no_such_pool},
            {Fake.problem(409, "wrong_type"), :wrong_type},
            {Fake.problem(400, "invalid_argument"), :invalid_argument},
            {Fake.problem(401, "unauthenticated"), :unauthorized},
            {Fake.problem(403, "permission_denied"), :unauthorized},
            {Fake.problem(429, "rate_limited"), :rate_limited},
            {Fake.granted(3, 17, %{"identity" => ~s("another")}), :bad_answer},
            {Fake.granted(-1, 17), :bad_answer},
            {Fake.granted(3, 0), :bad_answer},
            {Fake.granted(~s("3"), 17), :bad_answer},
            {Fake.granted(3, 17, %{"ttl_ms" => "null"}), :bad_answer},
            {Fake.json(~s({"result":true})), :bad_answer}
          ] do
        {fake, options} = start([reply])
        assert LeaseStrategy.acquire(@duration, options) == {:error, reason}
        assert Fake.operations(fake) == ["ACQUIRE"]
      end
    end

    calm_test "what is no answer of a node is followed by the next endpoint" do
      for other <- [
            {:error, :refused},
            {:error, :timeout},
            {:error, "not an atom"},
            :nonsense,
            fn _request -> raise "no" end,
            fn _request -> exit(:no) end,
            fn _request -> throw(:no) end,
            Fake.page(200),
            Fake.page(301),
            Fake.page(401),
            Fake.page(403),
            Fake.page(404),
            Fake.page(408),
            Fake.page(429),
            Fake.page(502),
            {:ok, 302, [{"location", "http://evil:1/v1/OP"}], ""},
            {:ok, 200, [], ""},
            {:ok, 200, [], "[]"},
            {:ok, 200, [], "{}"},
            {:ok, 200, [], <<0xFF>>},
            {:ok, 404, [], ~s({"code":"no_such_key"})},
            {:ok, 404, [], ~s({"code":"no_such_key","status":503})},
            {:ok, 404, [], ~s({"error":"no route"})},
            Fake.problem(404, "not_found"),
            Fake.problem(408, "request_timeout"),
            Fake.problem(500, "internal"),
            Fake.problem(503, "unavailable"),
            Fake.problem(504, "outcome_unknown")
          ] do
        {fake, options} = start([other, Fake.granted(3, 17)])
        assert {:ok, 3, _lease, _ttl} = LeaseStrategy.acquire(@duration, options), inspect(other)
        assert ["http://a:1/v1/OP", "http://b:2/v1/OP"] = for(request <- Fake.asked(fake), do: request.url)
      end
    end

    calm_test "the leader's address is followed to endpoints of the list alone" do
      {fake, options} = start([Fake.problem(503, "unavailable", ~s(,"leader":"c:3")), Fake.granted(3, 17)])
      assert {:ok, 3, _lease, _ttl} = LeaseStrategy.acquire(@duration, options)
      assert ["http://a:1/v1/OP", "http://c:3/v1/OP"] = for(request <- Fake.asked(fake), do: request.url)

      for hint <- [~s("evil:3"), ~s("c:3@evil:80"), "7", ~s("")] do
        {fake, options} =
          start([Fake.problem(503, "unavailable", ~s(,"leader":#{hint})), Fake.granted(3, 17)])

        assert {:ok, 3, _lease, _ttl} = LeaseStrategy.acquire(@duration, options)
        assert ["http://a:1/v1/OP", "http://b:2/v1/OP"] = for(request <- Fake.asked(fake), do: request.url)
      end
    end
  end

  describe "the budget" do
    calm_test "that leaves crumbs for a try does not let its silence hide what is known" do
      # So many that each has less than half a second.
      endpoints = for n <- 1..16, do: "http://h#{n}:1"

      {fake, options} =
        start(List.duplicate({:error, :refused}, 3) ++ List.duplicate(hang(), 13), endpoints: endpoints)

      assert LeaseStrategy.acquire(@duration, options) == {:error, :refused}
      assert length(Fake.asked(fake)) > 3
    end

    calm_test "that one endpoint had a share of, and said nothing in, is told of as silence" do
      {fake, options} = start([{:error, :refused}, hang()], endpoints: ["http://a:1"])
      assert LeaseStrategy.acquire(@duration, options) == {:error, :timeout}
      assert length(Fake.asked(fake)) == 2
    end

    calm_test "of a store that refuses: within 4 s, many tries, none too many" do
      {fake, options} = start([])
      {ms, result} = timed(fn -> in_process(fn -> LeaseStrategy.acquire(@duration, options) end) end)
      assert result == {:error, :refused}
      assert ms < @max_ms + @late_ms
      assert length(Fake.asked(fake)) in 6..36
    end

    test "of calls that never return" do
      for {call, result, most} <- [
            {&LeaseStrategy.renew(&1, @duration, &2), {:error, :retry, :timeout}, @max_ms},
            {fn _lease, options -> LeaseStrategy.acquire(@duration, options) end, {:error, :timeout},
             @max_ms},
            {&LeaseStrategy.release/2, :ok, 2_000}
          ] do
        calm(fn ->
          {fake, options, lease} = held()
          Fake.push(fake, [hang(), hang(), hang()])
          {ms, got} = timed(fn -> in_process(fn -> call.(lease, options) end) end)
          assert got == result
          # 200 ms are kept back for the way from the worker to the caller.
          assert ms in (most - 300)..(most + @late_ms)
        end)
      end
    end

    test "holds where whoever logs is made to wait" do
      for {call, result} <- [
            {&LeaseStrategy.renew(&1, @duration, &2), {:error, :retry, :refused}},
            {&LeaseStrategy.release/2, :ok}
          ] do
        calm(fn ->
          {_fake, options, lease} = held()
          handler = :"stuck_#{System.unique_integer([:positive])}"
          :ok = :logger.add_handler(handler, StuckLogger, %{config: options[:pool]})
          on_exit(fn -> :logger.remove_handler(handler) end)

          {ms, got} = timed(fn -> in_process(fn -> call.(lease, options) end) end)
          assert got == result
          assert ms < @max_ms + @late_ms
        end)
      end
    end

    calm_test "may be smaller" do
      {_fake, options} = start(List.duplicate(hang(), 3), budget_ms: 500)
      {ms, result} = timed(fn -> LeaseStrategy.acquire(@duration, options) end)
      assert result == {:error, :timeout}
      assert ms < 500 + @late_ms
    end

    calm_test "of one endpoint that never returns is not the others'" do
      {fake, options} = start([hang(), hang(), Fake.granted(3, 17)])
      assert {:ok, 3, _lease, _ttl} = in_process(fn -> LeaseStrategy.acquire(@duration, options) end)
      assert length(Fake.asked(fake)) == 3
    end

    calm_test "is dealt out over the endpoints" do
      slow = fn request ->
        Process.sleep(request.timeout_ms)
        {:error, :timeout}
      end

      {fake, options} = start([slow, slow, Fake.granted(3, 17)], budget_ms: 4_000)
      assert {:ok, 3, _lease, _ttl} = LeaseStrategy.acquire(@duration, options)
      # A third each, less what a busy host takes in between: it has half a second for each.
      for request <- Fake.asked(fake), do: assert(request.timeout_ms in 700..1_267)
    end
  end

  describe "renew" do
    calm_test "renews with token and fence, and as often as it is asked" do
      {fake, options, lease} = held()
      Fake.push(fake, [Fake.renewed(3, 17), Fake.renewed(3, 17)])

      for _ <- 1..2 do
        assert {:ok, ^lease, ttl} = LeaseStrategy.renew(lease, @duration, options)
        assert ttl in (588_235 - @max_ms)..588_235
      end

      assert [_, renew, _] = Fake.asked(fake)
      assert %{"token" => token, "fence" => 17, "ttl_ms" => @duration, "unix_ms" => _} = renew.args
      assert token == lease.token
    end

    calm_test "from NoNoncense's cache, in a process that is new" do
      {fake, options, lease} = held()
      Fake.push(fake, [Fake.renewed(3, 17)])
      assert {:ok, ^lease, _ttl} = in_process(fn -> LeaseStrategy.renew(lease, @duration, options) end)
    end

    calm_test "is lost on a node's word alone" do
      for {reply, reason} <- [
            {Fake.lost("expired"), :expired},
            {Fake.lost("taken_over"), :taken_over},
            {Fake.lost("broken"), :broken},
            {Fake.lost("not_held"), :not_held},
            {Fake.lost("something_new"), :unknown_lease},
            {Fake.problem(404, "no_such_key"), :no_such_pool}
          ] do
        {fake, options, lease} = held()
        Fake.push(fake, [reply])
        assert LeaseStrategy.renew(lease, @duration, options) == {:error, :lost, reason}
      end
    end

    calm_test "everything else is to be tried again" do
      for {reply, reason} <- [
            {Fake.nothing("key_expired"), :key_expired},
            {Fake.nothing("ttl_not_positive"), :declined},
            {Fake.problem(409, "wrong_type"), :wrong_type},
            {Fake.problem(401, "unauthenticated"), :unauthorized},
            {Fake.problem(429, "rate_limited"), :rate_limited},
            {Fake.json(~s({"result":true})), :bad_answer},
            {Fake.json(~s({"result":{"status":"other"}})), :bad_answer},
            {Fake.json(~s({"result":{"status":"renewed"}})), :bad_answer},
            {Fake.renewed(4, 17), :wrong_pool},
            {Fake.renewed(3, 18), :wrong_pool},
            {Fake.renewed(3, 17, %{"pool" => ~s("another")}), :wrong_pool},
            {Fake.renewed(3, 17, %{"ttl_ms" => 30_600}), :ttl_too_short}
          ] do
        {fake, options, lease} = held()
        Fake.push(fake, [reply])
        assert LeaseStrategy.renew(lease, @duration, options) == {:error, :retry, reason}
        assert Fake.operations(fake) == ["ACQUIRE", "RENEW"]
      end
    end

    # Each has all its 3 s; any reason will do, so that none has to begin again.
    test "nothing that is no node's answer is a loss" do
      lost = ~s({"result":{"status":"lost"},"reason":"not_held"})

      for reply <- [
            Fake.page(404),
            Fake.page(403),
            Fake.page(302),
            Fake.page(200),
            {:ok, 404, [], ~s({"code":"no_such_key"})},
            {:ok, 500, [], lost},
            {:ok, 404, [], lost},
            {:ok, 200, [], ~s({"status":"lost"})},
            Fake.json(~s({"result":"lost"})),
            Fake.json(~s({"result":false,"reason":"not_held"}))
          ] do
        {fake, options, lease} = held(budget_ms: 3_000)
        Fake.push(fake, List.duplicate(reply, 40))
        assert {:error, :retry, reason} = LeaseStrategy.renew(lease, @duration, options)
        assert is_atom(reason)
      end
    end

    calm_test "another cluster's word is no proof, but for one that was restored" do
      {fake, options, lease} = held()
      other = fn {:ok, 200, _headers, text} -> {:ok, 200, [{"tenure-cluster", "ff"}], text} end
      Fake.push(fake, [other.(Fake.lost("not_held")), other.(Fake.lost("restored"))])
      assert LeaseStrategy.renew(lease, @duration, options) == {:error, :retry, :wrong_cluster}
      assert LeaseStrategy.renew(lease, @duration, options) == {:error, :lost, :restored}
    end
  end

  describe "an answer that does not say which cluster it is of" do
    calm_test "is no proof of a loss" do
      for reply <- [Fake.lost("not_held"), Fake.lost("restored"), Fake.problem(404, "no_such_key")] do
        {fake, options, lease} = held()
        Fake.push(fake, [Fake.nameless(reply), Fake.renewed(3, 17)])
        assert LeaseStrategy.renew(lease, @duration, options) == {:error, :retry, :bad_answer}
        assert {:ok, ^lease, _ttl} = LeaseStrategy.renew(lease, @duration, options)
      end
    end

    calm_test "counts where none ever did: `http` hands over no headers" do
      for {reply, reason} <- [
            {Fake.lost("not_held"), :not_held},
            {Fake.problem(404, "no_such_key"), :no_such_pool}
          ] do
        {_fake, options} = start([Fake.nameless(Fake.granted(3, 17)), Fake.nameless(reply)])
        assert {:ok, 3, %Lease{cluster: nil} = lease, _ttl} = LeaseStrategy.acquire(@duration, options)
        assert LeaseStrategy.renew(lease, @duration, options) == {:error, :lost, reason}
      end
    end
  end

  describe "the clock floor" do
    # `ms` from when the answer is made, which the test is told.
    defp ahead(ms, ttl_ms \\ 600_000) do
      caller = self()

      fn _request ->
        floor = System.system_time(:millisecond) + ms
        send(caller, {:floor, floor})
        Fake.granted(3, 17, %{"floor_unix_ms" => floor, "ttl_ms" => ttl_ms})
      end
    end

    calm_test "in the past is no matter" do
      {_fake, options} = start([ahead(-60_000)])
      assert {:ok, 3, _, _} = LeaseStrategy.acquire(@duration, options)
    end

    calm_test "little ahead is waited for, and the wait is not in the ttl" do
      {_fake, options} = start([ahead(900, 102_000)])
      assert {:ok, 3, _, ttl} = LeaseStrategy.acquire(@duration, options)
      assert_received {:floor, floor}
      assert System.system_time(:millisecond) >= floor
      assert ttl < 99_300
    end

    test "far ahead, or too far for the time that is left: given back" do
      # The second is less than what is waited for, and more than is left.
      for {ms, more} <- [{5_000, []}, {1_950, [budget_ms: 2_000]}] do
        calm(fn ->
          {fake, options} = start([ahead(ms), Fake.released()], more)
          {took_ms, result} = timed(fn -> LeaseStrategy.acquire(@duration, options) end)
          assert result == {:error, :clock_behind}
          assert took_ms < 2_000 + @late_ms
          assert Fake.operations(fake) == ["ACQUIRE", "RELEASE"]
        end)
      end
    end
  end

  describe "whatever is given" do
    calm_test "nothing is raised" do
      {_fake, good, lease} = held()

      for wrong <- [
            nil,
            1,
            %{},
            [1],
            [:a | :b],
            [{1, 2}],
            [pool: "p"],
            [pool: "p", endpoints: :x],
            good ++ [x: 1]
          ] do
        assert {:error, reason} = LeaseStrategy.acquire(@duration, wrong)
        assert reason in [:invalid_options, :internal]
        assert {:error, :retry, reason} = LeaseStrategy.renew(lease, @duration, wrong)
        assert reason in [:invalid_options, :internal]
        assert LeaseStrategy.release(lease, wrong) == :ok
      end

      for duration <- [nil, "1", %{}] do
        assert {:error, reason} = LeaseStrategy.acquire(duration, Keyword.put(good, :pool, "other"))
        assert is_atom(reason)
      end

      assert {:error, :retry, :invalid_lease} = LeaseStrategy.renew({3, "token"}, @duration, good)
      assert LeaseStrategy.release({3, "token"}, good) == :ok
    end
  end
end
