defmodule Tenure.NoNoncense.SuccessorTest do
  # Who else has the identity, and what of it is this VM's own.
  use ExUnit.Case, async: true

  import StrategyCase
  alias Tenure.NoNoncense.LeaseStrategy

  @duration 600_000
  # A call's budget; and by which a busy host may wake a test too late.
  @max_ms 4_000
  @late_ms 900

  describe "a successor" do
    calm_test "is never fought: fenced, then back off for as long as it holds" do
      {fake, options, lease} = held()
      Fake.push(fake, [Fake.lost("taken_over")])
      assert LeaseStrategy.renew(lease, @duration, options) == {:error, :lost, :taken_over}

      Fake.push(fake, [Fake.holders([{9, "pod-9", 40}, {3, "pod-1", 18}]), Fake.held(false)])
      assert LeaseStrategy.acquire(@duration, options) == {:error, :identity_in_use}
      # Gone, or on a page of its own.
      pages = [Fake.holders([{3, "pod-2", 19}], 3), Fake.holders([{4, "pod-1", 20}])]
      Fake.push(fake, pages ++ [Fake.held(false)])
      assert LeaseStrategy.acquire(@duration, options) == {:error, :identity_in_use}

      Fake.push(fake, [Fake.holders([{3, "pod-2", 19}]), Fake.granted(5, 21)])
      assert {:ok, 5, again, _ttl} = LeaseStrategy.acquire(@duration, options)
      assert again.token != lease.token

      assert Fake.operations(fake) ==
               ~w(ACQUIRE RENEW HOLDERS HELD HOLDERS HOLDERS HELD HOLDERS ACQUIRE)

      assert %{args: %{"cursor" => 3, "limit" => 100}} = Enum.at(Fake.asked(fake), 5)
    end

    calm_test "that took over unseen" do
      {fake, options, lease} = held()
      Fake.push(fake, [Fake.holders([]), Fake.nothing("taken_over")])
      assert LeaseStrategy.acquire(@duration, options) == {:error, :fenced}
      Fake.push(fake, [Fake.holders([{3, "pod-1", 18}]), Fake.held(false)])
      assert LeaseStrategy.acquire(@duration, options) == {:error, :identity_in_use}
      Fake.push(fake, [Fake.holders([]), Fake.granted(3, 19)])
      assert {:ok, 3, again, _ttl} = LeaseStrategy.acquire(@duration, options)
      assert again.token != lease.token
    end

    test "if it cannot be told whether there is one, nothing is taken" do
      somebody = Fake.holders([{3, "pod-1", 18}])

      for {replies, reason} <- [
            {List.duplicate(Fake.page(404), 60), :bad_answer},
            {[Fake.json(~s({"result":true}))], :bad_answer},
            {[Fake.problem(403, "permission_denied")], :unauthorized},
            {[somebody | List.duplicate(Fake.page(404), 60)], :bad_answer},
            {[somebody, Fake.json(~s({"result":"true"}))], :bad_answer},
            {[somebody, Fake.json(~s({"result":null}))], :bad_answer},
            {[somebody, Fake.problem(403, "permission_denied")], :unauthorized}
          ] do
        calm(fn ->
          {fake, options, lease} = held(budget_ms: 3_000)
          Fake.push(fake, [Fake.lost("expired")])
          assert LeaseStrategy.renew(lease, @duration, options) == {:error, :lost, :expired}

          Fake.push(fake, replies)
          assert LeaseStrategy.acquire(@duration, options) == {:error, reason}
          refute "ACQUIRE" in tl(Fake.operations(fake))
        end)
      end
    end

    calm_test "a grant that ended is followed by another token's, and another grant" do
      for reason <- ["expired", "not_held", "broken"] do
        {fake, options, lease} = held()
        Fake.push(fake, [Fake.lost(reason), Fake.holders([]), Fake.granted(3, 18)])
        assert {:error, :lost, _reason} = LeaseStrategy.renew(lease, @duration, options)
        assert {:ok, 3, again, _ttl} = LeaseStrategy.acquire(@duration, options)
        assert again.token != lease.token
        refute Map.has_key?(List.last(Fake.asked(fake)).args, "avoid")
      end
    end

    calm_test "a token that was used up unseen is replaced once" do
      {fake, options} = start([Fake.nothing("token_used"), Fake.holders([]), Fake.granted(3, 18)])
      assert {:ok, 3, _lease, _ttl} = LeaseStrategy.acquire(@duration, options)
      assert [%{args: %{"token" => first}}, _holders, %{args: %{"token" => second}}] = Fake.asked(fake)
      assert first != second

      {_fake, options} = start([Fake.nothing("token_used"), Fake.holders([]), Fake.nothing("token_used")])
      assert LeaseStrategy.acquire(@duration, options) == {:error, :token_used}
    end
  end

  describe "an ACQUIRE that took effect, and whose answers were lost," do
    # One endpoint, and one try that takes all the time.
    @one_try [endpoints: ["http://a:1"], budget_ms: 2_000]

    # Its grant is the VM's own, though it has not seen it: nothing that NoNoncense did before makes a stranger of it.
    for {before, replies} <- [
          {"an expiry", quote(do: [Fake.lost("expired")])},
          {"a BREAK", quote(do: [Fake.lost("broken")])},
          {"a DEL", quote(do: [Fake.problem(404, "no_such_key")])},
          {"a take-over", quote(do: [Fake.lost("taken_over")])}
        ] do
      calm_test "after #{before} is followed by the same ACQUIRE" do
        {fake, options, lease} = held(@one_try)
        Fake.push(fake, unquote(replies))
        assert {:error, :lost, _} = LeaseStrategy.renew(lease, @duration, options)
        Fake.push(fake, [Fake.holders([]), hang()])
        assert LeaseStrategy.acquire(@duration, options) == {:error, :timeout}
        assert_own(fake, options, 3, nil)
      end
    end

    calm_test "after a release is followed by the same ACQUIRE" do
      {fake, options, lease} = held(@one_try)
      Fake.push(fake, [Fake.released()])
      :ok = LeaseStrategy.release(lease, options)
      Fake.push(fake, [Fake.holders([]), hang()])
      assert LeaseStrategy.acquire(@duration, options) == {:error, :timeout}
      assert_own(fake, options, 3, nil)
    end

    calm_test "after a token that was used up unseen is followed by the same ACQUIRE" do
      {fake, options} = start([Fake.nothing("token_used"), Fake.holders([]), hang()], @one_try)
      assert LeaseStrategy.acquire(@duration, options) == {:error, :timeout}
      assert_own(fake, options, 3, nil)
    end

    calm_test "after a conflict signal is followed by the same ACQUIRE, which still avoids the ID" do
      {fake, options, _lease} = held(@one_try)
      Fake.push(fake, [Fake.holders([{3, "pod-1", 17}]), hang()])
      assert LeaseStrategy.acquire(@duration, options) == {:error, :timeout}
      assert_own(fake, options, 4, 3)
    end

    defp assert_own(fake, options, id, avoid) do
      lost = List.last(Fake.asked(fake))
      # As often as it takes.
      Fake.push(fake, [Fake.holders([{id, "pod-1", 18}]), Fake.held(true), hang()])
      assert LeaseStrategy.acquire(@duration, options) == {:error, :timeout}
      Fake.push(fake, [Fake.holders([{id, "pod-1", 18}]), Fake.held(true), Fake.granted(id, 18)])
      assert {:ok, ^id, lease, _ttl} = LeaseStrategy.acquire(@duration, options)

      assert [_, held, acquire] = Enum.take(Fake.asked(fake), -3)
      assert %{operation: "HELD", args: args} = held
      assert args == %{"token" => lease.token}
      assert %{operation: "ACQUIRE"} = acquire
      assert Map.delete(acquire.args, "unix_ms") == Map.delete(lost.args, "unix_ms")
      assert acquire.args["avoid"] == avoid
    end
  end

  describe "a conflict signal" do
    calm_test "is an acquire in the same process before the lease's end; then the ID is avoided until another is granted" do
      {fake, options, _lease} = held()
      Fake.push(fake, [Fake.holders([{3, "pod-1", 17}]), Fake.nothing("exhausted")])
      assert LeaseStrategy.acquire(@duration, options) == {:error, :exhausted}
      Fake.push(fake, [Fake.holders([{3, "pod-1", 17}]), Fake.granted(4, 18)])
      assert {:ok, 4, lease, _ttl} = LeaseStrategy.acquire(@duration, options)
      # The next one is about the new ID.
      Fake.push(fake, [Fake.holders([{4, "pod-1", 18}]), Fake.granted(5, 19)])
      assert {:ok, 5, _lease, _ttl} = LeaseStrategy.acquire(@duration, options)

      acquires = for %{operation: "ACQUIRE", args: args} <- Fake.asked(fake), do: args
      assert [nil, 3, 3, 4] = for(args <- acquires, do: args["avoid"])
      # By the token that holds: so also where the pool refuses other tokens of the identity.
      assert [_one] = acquires |> Enum.map(& &1["token"]) |> Enum.uniq()
      assert lease.id == 4
    end

    calm_test "is none in a process that is new, after :lost, after a release" do
      {fake, options, lease} = held()
      Fake.push(fake, [Fake.holders([]), Fake.granted(3, 17)])
      assert {:ok, 3, _, _} = in_process(fn -> LeaseStrategy.acquire(@duration, options) end)

      Fake.push(fake, [Fake.lost("broken"), Fake.holders([]), Fake.granted(3, 18)])
      assert {:error, :lost, :broken} = LeaseStrategy.renew(lease, @duration, options)
      assert {:ok, 3, lease, _} = LeaseStrategy.acquire(@duration, options)

      Fake.push(fake, [Fake.released(), Fake.holders([]), Fake.granted(3, 19)])
      :ok = LeaseStrategy.release(lease, options)
      assert {:ok, 3, _, _} = LeaseStrategy.acquire(@duration, options)
      refute Enum.any?(Fake.asked(fake), &Map.has_key?(&1.args, "avoid"))
    end

    calm_test "is none after the lease's end by NoNoncense's own clock, 10 s before the grant's" do
      {fake, options, lease} = held()
      # What is left is what NoNoncense keeps for its margin.
      key = {LeaseStrategy, options[:pool], options[:identity]}
      assert %{id: 3, expires_at: expires_at} = Process.get(key)
      left = expires_at - System.monotonic_time(:millisecond)
      assert left in (578_235 - @max_ms - @late_ms)..578_235
      Process.put(key, %{id: 3, expires_at: System.monotonic_time(:millisecond)})

      Fake.push(fake, [Fake.holders([{3, "pod-1", 17}]), Fake.granted(3, 17)])
      assert {:ok, 3, again, _ttl} = LeaseStrategy.acquire(@duration, options)
      assert again.token == lease.token
      refute Map.has_key?(List.last(Fake.asked(fake)).args, "avoid")
    end
  end
end
