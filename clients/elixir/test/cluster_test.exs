defmodule Tenure.NoNoncense.ClusterTest do
  # Against three real nodes, through a proxy that does what networks do, and with other BEAM processes.
  use ExUnit.Case, async: false

  import StrategyCase, only: [calm_test: 3, timed: 1]
  alias Tenure.NoNoncense.LeaseStrategy

  @moduletag :cluster
  @duration 600_000
  # By which a busy host may wake a test too late. With it a call of 4 s is still below NoNoncense's limit of 5 s.
  @late_ms 900

  setup_all do
    # It ends with this process.
    %{cluster: Cluster.start(3)}
  end

  # A VM of its own, as far as the store can tell.
  defp options(cluster, pool, identity, more \\ []) do
    incarnation = "incarnation-#{System.unique_integer([:positive])}-#{System.pid()}"
    Keyword.merge([endpoints: cluster.uri, pool: pool, identity: identity, incarnation: incarnation], more)
  end

  # In a process of its own: what it keeps for a conflict is its own.
  defp acquire(options, duration \\ @duration) do
    Task.await(Task.async(fn -> LeaseStrategy.acquire(duration, options) end), 10_000)
  end

  describe "an identity" do
    calm_test "has an ID, keeps it, gives it back, and gets it again", %{cluster: cluster} do
      pool = Cluster.pool(cluster)
      options = options(cluster, pool, "pod-1")
      assert {:ok, 0, lease, ttl} = acquire(options)
      assert ttl in 580_000..588_235
      assert {:ok, ^lease, ttl} = LeaseStrategy.renew(lease, @duration, options)
      assert ttl in 580_000..588_235
      assert Cluster.holders(cluster, pool) == [{0, "pod-1", lease.fence}]

      # Again by the same VM: the same grant.
      assert {:ok, 0, ^lease, _} = acquire(options)
      assert {:ok, 1, _, _} = acquire(options(cluster, pool, "pod-2"))

      assert LeaseStrategy.release(lease, options) == :ok
      assert LeaseStrategy.release(lease, options) == :ok
      assert [{1, "pod-2", _}] = Cluster.holders(cluster, pool)
      assert LeaseStrategy.renew(lease, @duration, options) == {:error, :lost, :not_held}
      assert {:ok, 0, again, _} = acquire(options)
      assert again.fence > lease.fence
      assert again.token != lease.token
    end

    calm_test "gets the same ID in each new VM, killed or not", %{cluster: cluster} do
      pool = Cluster.pool(cluster)
      assert {:ok, 0, _, _} = acquire(options(cluster, pool, "another"))
      vm = Vm.start(cluster.uri, pool, "pod-1")
      assert "ok 1 " <> fence = vm.said
      assert Vm.tell(vm, "renew") == "ok"
      Vm.kill(vm)

      vm = Vm.start(cluster.uri, pool, "pod-1")
      assert "ok 1 " <> second = vm.said
      assert String.to_integer(second) > String.to_integer(fence)
      assert Vm.tell(vm, "release") == "ok"
      Vm.kill(vm)

      vm = Vm.start(cluster.uri, pool, "pod-1")
      assert "ok 1 " <> _ = vm.said
      Vm.kill(vm)
      assert [{0, "another", _}, {1, "pod-1", _}] = Cluster.holders(cluster, pool)
    end

    for {how, stop} <- [signal: quote(do: &Vm.signal(&1, "TERM")), system_stop: quote(do: &Vm.system_stop/1)] do
      calm_test "is given back when the VM stops by #{how}", %{cluster: cluster} do
        pool = Cluster.pool(cluster)
        vm = Vm.service(cluster.uri, pool, "pod-1")
        assert "ok 0 " <> fence = vm.said
        assert Cluster.holders(cluster, pool) == [{0, "pod-1", String.to_integer(fence)}]
        # Told by the VM itself: how long it takes to start `kill` and to end a VM is the host's matter.
        assert {:ok, ms} = unquote(stop).(vm)
        assert Cluster.holders(cluster, pool) == []
        assert ms <= 2_000 + @late_ms
      end
    end

    calm_test "keeps no VM from stopping in time where no node answers", %{cluster: cluster} do
      pool = Cluster.pool(cluster)
      vm = Vm.service(Proxy.start(Cluster.port(cluster, 1), [:pass, :hang]), pool, "pod-1")
      assert "ok 0 " <> _ = vm.said
      # A supervisor that gives it the usual 5 s has no need to kill it.
      assert {:ok, ms} = Vm.signal(vm, "TERM")
      assert ms <= 2_000 + @late_ms
    end

    calm_test "is by default the node's name with the manager's, where there is one", %{cluster: cluster} do
      pool = Cluster.pool(cluster)
      # A name without a port mapper, which would stay behind.
      named = &["--erl", "-dist_listen false -start_epmd false", "--name", &1]
      name = "tenure_test_#{System.pid()}@host-1.tenure.test"
      vm = Vm.start(cluster.uri, pool, "", named.(name))
      assert "ok 0 " <> _ = vm.said
      Vm.kill(vm)
      assert [{0, identity, _}] = Cluster.holders(cluster, pool)
      assert identity == name <> "/MyApp.LeaseManager"

      vm = Vm.start(cluster.uri, pool, "", named.(name))
      assert "ok 0 " <> _ = vm.said
      Vm.kill(vm)

      # By this name all containers would be one.
      vm = Vm.start(cluster.uri, pool, "", named.("tenure_test_#{System.pid()}@127.0.0.1"))
      assert "ok 1 " <> _ = vm.said
      Vm.kill(vm)
      assert {1, "vm-" <> _, _} = List.last(Cluster.holders(cluster, pool))
    end

    calm_test "taken over: lost at once, then back off until the successor is gone", %{cluster: cluster} do
      pool = Cluster.pool(cluster)
      old = options(cluster, pool, "pod-1")
      assert {:ok, 0, lease, _} = LeaseStrategy.acquire(@duration, old)

      vm = Vm.start(cluster.uri, pool, "pod-1")
      assert "ok 0 " <> _ = vm.said
      assert LeaseStrategy.renew(lease, @duration, old) == {:error, :lost, :taken_over}
      for _ <- 1..3, do: assert(LeaseStrategy.acquire(@duration, old) == {:error, :identity_in_use})
      assert Vm.tell(vm, "renew") == "ok"

      assert Vm.tell(vm, "release") == "ok"
      assert {:ok, 0, _, _} = LeaseStrategy.acquire(@duration, old)
      assert Vm.tell(vm, "renew") == "lost not_held"
      assert Vm.tell(vm, "acquire") == "error identity_in_use"
      Vm.kill(vm)
    end

    calm_test "taken over unseen", %{cluster: cluster} do
      pool = Cluster.pool(cluster)
      old = options(cluster, pool, "pod-1")
      parked = [endpoints: "http://127.0.0.1:#{Server.closed_port()}"]
      assert {:ok, 0, lease, _} = acquire(old)
      assert {:ok, 0, _, _} = acquire(options(cluster, pool, "pod-1"))
      # It learns of it by ACQUIRE: NoNoncense's cache was lost with its supervisor.
      assert {:error, :retry, :refused} = LeaseStrategy.renew(lease, @duration, Keyword.merge(old, parked))
      assert acquire(old) == {:error, :identity_in_use}
    end

    calm_test "in a pool that rejects is refused while it is live elsewhere, and free after a release", %{
      cluster: cluster
    } do
      pool = Cluster.pool(cluster, %{"on_conflict" => "reject"})
      first = options(cluster, pool, "pod-1")
      assert {:ok, 0, lease, _} = acquire(first)
      second = options(cluster, pool, "pod-1")
      assert acquire(second) == {:error, :identity_in_use}
      assert {:ok, 0, ^lease, _} = acquire(first)
      assert LeaseStrategy.release(lease, first) == :ok
      assert {:ok, 0, _, _} = acquire(second)
    end

    calm_test "whose RELEASE did not arrive is not in its own way", %{cluster: cluster} do
      # A take-over would be refused in the one, and from the fourth on in the other.
      for policy <- ["reject", "takeover"] do
        pool = Cluster.pool(cluster, %{"on_conflict" => policy})
        options = options(cluster, pool, "pod-1")
        parked = Keyword.put(options, :endpoints, "http://127.0.0.1:#{Server.closed_port()}")

        for _ <- 1..5 do
          assert {:ok, 0, lease, _} = acquire(options)
          assert LeaseStrategy.release(lease, parked) == :ok
          assert Cluster.holders(cluster, pool) == [{0, "pod-1", lease.fence}]
        end
      end
    end

    calm_test "of two that take over from each other in turn is refused", %{cluster: cluster} do
      pool = Cluster.pool(cluster)
      outcomes = for _ <- 1..5, do: acquire(options(cluster, pool, "pod-1"))

      assert [{:ok, 0, _, _}, {:ok, 0, _, _}, {:ok, 0, _, _}, {:ok, 0, _, _}, {:error, :identity_conflict}] =
               outcomes
    end
  end

  describe "a pool" do
    calm_test "gives each identity an ID of its own, until it is exhausted", %{cluster: cluster} do
      pool = Cluster.pool(cluster, %{"size" => 8})

      ids =
        1..8
        |> Task.async_stream(&LeaseStrategy.acquire(@duration, options(cluster, pool, "pod-#{&1}")),
          timeout: 10_000
        )
        |> Enum.map(fn {:ok, {:ok, id, _, _}} -> id end)

      assert Enum.sort(ids) == Enum.to_list(0..7)
      assert acquire(options(cluster, pool, "pod-9")) == {:error, :exhausted}
    end

    calm_test "never gives less than 30 s to NoNoncense", %{cluster: cluster} do
      pool = Cluster.pool(cluster, %{"ttl_ms_min" => 1})
      options = options(cluster, pool, "pod-1")
      assert {:ok, 0, lease, ttl} = acquire(options, 1)
      assert ttl >= 30_000
      assert {:ok, _, ttl} = LeaseStrategy.renew(lease, 1, options)
      assert ttl >= 30_000

      # One that gives no more than that cannot be used.
      pool = Cluster.pool(cluster, %{"ttl_ms_max" => 30_000})
      assert acquire(options(cluster, pool, "pod-1"), 1) == {:error, :invalid_argument}
    end

    calm_test "of IDs above 511 is refused, and nothing stays behind", %{cluster: cluster} do
      pool = Cluster.pool(cluster, %{"first" => 511, "size" => 2})
      assert {:ok, 511, _, _} = acquire(options(cluster, pool, "pod-1"))
      assert acquire(options(cluster, pool, "pod-2")) == {:error, :id_out_of_range}
      assert [{511, "pod-1", _}] = Cluster.holders(cluster, pool)
    end

    calm_test "that is not there, or is a lease", %{cluster: cluster} do
      assert acquire(options(cluster, "no-such-pool", "pod-1")) == {:error, :no_such_pool}
      lease = "lease-#{System.unique_integer([:positive])}"
      Cluster.command(cluster, "CREATE", %{"key" => lease, "type" => "lease"})
      assert acquire(options(cluster, lease, "pod-1")) == {:error, :wrong_type}
    end

    calm_test "that is deleted, and an ID that an operator broke, are lost", %{cluster: cluster} do
      pool = Cluster.pool(cluster)
      options = options(cluster, pool, "pod-1")
      assert {:ok, 0, lease, _} = LeaseStrategy.acquire(@duration, options)

      assert %{"result" => true} =
               Cluster.operation(cluster, pool, "BREAK", %{"id" => 0, "reason" => "a test"})

      assert LeaseStrategy.renew(lease, @duration, options) == {:error, :lost, :broken}
      # In quarantine for its own identity too.
      assert {:ok, 1, lease, _} = LeaseStrategy.acquire(@duration, options)

      assert %{"result" => 1} = Cluster.command(cluster, "DEL", ~s({"keys":["#{pool}"]}))
      assert LeaseStrategy.renew(lease, @duration, options) == {:error, :lost, :no_such_pool}
      assert LeaseStrategy.acquire(@duration, options) == {:error, :no_such_pool}
    end

    calm_test "gives another ID on a conflict, and nobody the old one", %{cluster: cluster} do
      for policy <- ["takeover", "reject"] do
        pool = Cluster.pool(cluster, %{"on_conflict" => policy})
        options = options(cluster, pool, "pod-1")
        assert {:ok, 0, _, _} = LeaseStrategy.acquire(@duration, options)
        # NoNoncense was told that its ID is in use elsewhere.
        assert {:ok, 1, lease, _} = LeaseStrategy.acquire(@duration, options)
        assert {:ok, _, _} = LeaseStrategy.renew(lease, @duration, options)
        assert [{1, "pod-1", _}] = Cluster.holders(cluster, pool)
        assert {:ok, 2, _, _} = acquire(options(cluster, pool, "pod-2"))
      end
    end

    calm_test "says how far the clocks of an ID's holders had got", %{cluster: cluster} do
      ahead = fn ms ->
        pool = Cluster.pool(cluster)
        # A holder whose clock is wrong.
        wrong = fn url, headers, body, timeout_ms ->
          body =
            Regex.replace(~r/"unix_ms":(\d+)/, body, fn _, n -> ~s("unix_ms":#{String.to_integer(n) + ms}) end)

          headers =
            for {name, value} <- headers, name != "content-type", do: {to_charlist(name), to_charlist(value)}

          request = {to_charlist(url), headers, ~c"application/json", body}

          with {:ok, {{_, status, _}, headers, body}} <-
                 :httpc.request(:post, request, [timeout: timeout_ms], body_format: :binary),
               do: {:ok, status, headers, body}
        end

        options = options(cluster, pool, "pod-1", http: wrong)
        {told_in_ms, {:ok, 0, lease, _}} = timed(fn -> acquire(options) end)
        # So far ahead does the store take it to be; the way there counts for nothing.
        floor = System.system_time(:millisecond) + ms - told_in_ms
        :ok = LeaseStrategy.release(lease, options)
        {pool, floor, acquire(options(cluster, pool, "pod-1"))}
      end

      assert {_pool, floor, {:ok, 0, _, _}} = ahead.(1_500)
      assert System.system_time(:millisecond) >= floor
      assert {pool, _floor, {:error, :clock_behind}} = ahead.(60_000)
      assert Cluster.holders(cluster, pool) == []
    end
  end

  describe "behind a network that" do
    # The first endpoint is the bad one: the second answers within the budget.
    for mode <- [:refuse, :hang, {:slow, 3_000}, :drop, :reset, :garbage] do
      calm_test "does #{inspect(mode)}", %{cluster: cluster} do
        pool = Cluster.pool(cluster)
        port = Cluster.port(cluster, 1)
        good = Enum.at(cluster.urls, 1)
        endpoints = [Proxy.start(port, unquote(mode)), good]
        options = options(cluster, pool, "pod-1", endpoints: endpoints)

        {ms, {:ok, 0, lease, _}} = timed(fn -> acquire(options) end)
        assert ms <= 4_000 + @late_ms
        {ms, {:ok, ^lease, _}} = timed(fn -> LeaseStrategy.renew(lease, @duration, options) end)
        assert ms <= 4_000 + @late_ms
        assert [{0, "pod-1", _}] = Cluster.holders(cluster, pool)
        {ms, :ok} = timed(fn -> LeaseStrategy.release(lease, options) end)
        assert ms <= 2_000 + @late_ms

        # The good endpoint has half of the 2 s. What it was sent takes effect, though it may be later than the answer
        # is waited for; or not at all, if a sync or an election takes longer than that: it is sent again then.
        Cluster.eventually(fn ->
          if Cluster.holders(cluster, pool) == [],
            do: true,
            else: LeaseStrategy.release(lease, options) != :ok
        end)
      end

      calm_test "does #{inspect(mode)} at every endpoint", %{cluster: cluster} do
        pool = Cluster.pool(cluster)
        good = options(cluster, pool, "pod-1")
        {:ok, 0, lease, _} = acquire(good)
        bad = for node <- 1..2, do: Proxy.start(Cluster.port(cluster, node), unquote(mode))
        # The whole budget where it is the budget that ends the call; else the same in little.
        most = if unquote(mode) == :hang, do: 4_000, else: 1_000
        options = Keyword.merge(good, endpoints: bad, budget_ms: most)

        {ms, result} = timed(fn -> LeaseStrategy.renew(lease, @duration, options) end)
        assert ms <= most + @late_ms
        assert {:error, :retry, reason} = result
        assert is_atom(reason)
        {ms, {:error, _}} = timed(fn -> acquire(options) end)
        assert ms <= most + @late_ms
        {ms, :ok} = timed(fn -> LeaseStrategy.release(lease, options) end)
        assert ms <= 2_000 + @late_ms
      end
    end

    calm_test "loses the answers of what took effect: no second ID", %{cluster: cluster} do
      pool = Cluster.pool(cluster)
      endpoint = Proxy.start(Cluster.port(cluster, 1), [:drop, :drop, :pass])
      options = options(cluster, pool, "pod-1", endpoints: endpoint)
      assert {:ok, 0, lease, _} = acquire(options)
      assert Cluster.holders(cluster, pool) == [{0, "pod-1", lease.fence}]

      endpoint = Proxy.start(Cluster.port(cluster, 2), [:drop, :reset, :pass])

      assert {:ok, ^lease, _} =
               LeaseStrategy.renew(lease, @duration, Keyword.put(options, :endpoints, endpoint))
    end

    calm_test "loses every answer of an ACQUIRE: the grant is the VM's own afterwards", %{cluster: cluster} do
      broken = fn pool, lease, options ->
        Cluster.operation(cluster, pool, "BREAK", %{"id" => lease.id, "reason" => "a test"})
        assert LeaseStrategy.renew(lease, @duration, options) == {:error, :lost, :broken}
      end

      # To ask again is a conflict signal by itself.
      conflict = fn _pool, _lease, _options -> :ok end

      for before <- [broken, conflict] do
        pool = Cluster.pool(cluster)
        options = options(cluster, pool, "pod-1")
        assert {:ok, 0, lease, _} = LeaseStrategy.acquire(@duration, options)
        before.(pool, lease, options)

        # All is answered but ACQUIRE.
        endpoint = Proxy.start(Cluster.port(cluster, 1), {:drop, "ACQUIRE"})
        lossy = Keyword.merge(options, endpoints: endpoint)
        assert {:error, _} = LeaseStrategy.acquire(@duration, lossy)
        assert [{1, "pod-1", fence}] = Cluster.holders(cluster, pool)
        assert fence > lease.fence

        assert {:ok, 1, %{fence: ^fence} = lease, _} = LeaseStrategy.acquire(@duration, options)
        assert {:ok, ^lease, _} = LeaseStrategy.renew(lease, @duration, options)
      end
    end

    calm_test "is slow takes from the ttl", %{cluster: cluster} do
      pool = Cluster.pool(cluster)
      endpoint = Proxy.start(Cluster.port(cluster, 1), {:slow, 1_500})
      options = options(cluster, pool, "pod-1", endpoints: endpoint)
      assert {:ok, 0, _, ttl} = acquire(options, 51_000)
      assert ttl in 40_000..48_500
    end
  end

  describe "when nodes fail" do
    calm_test "the next test or try has all of them", %{cluster: cluster} do
      Cluster.signal(cluster, 1, "KILL")
      Cluster.signal(cluster, 2, "STOP")
      Cluster.heal(cluster)
      for node <- 1..3, do: assert(Cluster.ready?(cluster, node))
    end

    calm_test "a leader killed is no matter, again and again", %{cluster: cluster} do
      pool = Cluster.pool(cluster)
      options = options(cluster, pool, "pod-1")
      {:ok, 0, lease, _} = acquire(options)

      for _ <- 1..3 do
        leader = Cluster.leader(cluster)
        Cluster.signal(cluster, leader, "KILL")
        {ms, first} = timed(fn -> LeaseStrategy.renew(lease, @duration, options) end)
        assert ms <= 4_000 + @late_ms
        # Never lost. An election whose votes were split may take longer than one call.
        assert match?({:ok, ^lease, _}, first) or match?({:error, :retry, _}, first)

        ttl =
          Cluster.eventually(fn ->
            with {:ok, ^lease, ttl} <- LeaseStrategy.renew(lease, @duration, options),
                 do: ttl,
                 else: (_ -> nil)
          end)

        assert ttl > 580_000
        Cluster.restart(cluster, leader)
        # Else the next one would leave no majority.
        Cluster.ready(cluster)
      end
    end

    calm_test "a leader killed while it is asked", %{cluster: cluster} do
      pool = Cluster.pool(cluster)
      options = options(cluster, pool, "pod-1")
      {:ok, 0, lease, _} = acquire(options)
      leader = Cluster.leader(cluster)

      # All the time, while it dies and until there is another.
      test = self()

      renewals =
        Task.async(fn ->
          renew = fn -> timed(fn -> LeaseStrategy.renew(lease, @duration, options) end) end
          first = for _ <- 1..5, do: renew.()
          send(test, :renewing)
          first ++ until_told(renew)
        end)

      assert_receive :renewing, 30_000
      Cluster.signal(cluster, leader, "KILL")
      Cluster.leader(cluster)
      send(renewals.pid, :enough)

      for {ms, result} <- Task.await(renewals, 60_000) do
        # Never lost. An election whose votes were split may take longer than one call.
        assert match?({:ok, ^lease, _}, result) or match?({:error, :retry, _}, result)
        assert ms <= 4_000 + @late_ms
      end

      Cluster.eventually(fn -> match?({:ok, ^lease, _}, LeaseStrategy.renew(lease, @duration, options)) end)
      Cluster.restart(cluster, leader)
    end

    defp until_told(work) do
      receive do
        :enough -> [work.()]
      after
        0 -> [work.() | until_told(work)]
      end
    end

    calm_test "a leader that falls silent: no answer is a loss, and the next call is answered", %{
      cluster: cluster
    } do
      pool = Cluster.pool(cluster)
      options = options(cluster, pool, "pod-1")
      {:ok, 0, lease, _} = acquire(options)
      leader = Cluster.leader(cluster)
      Cluster.signal(cluster, leader, "STOP")

      {ms, first} = timed(fn -> LeaseStrategy.renew(lease, @duration, options) end)
      assert ms <= 4_000 + @late_ms
      assert match?({:ok, _, _}, first) or match?({:error, :retry, _}, first)

      Cluster.eventually(fn -> match?({:ok, _, _}, LeaseStrategy.renew(lease, @duration, options)) end)
      Cluster.signal(cluster, leader, "CONT")
    end

    calm_test "without a majority, or without any node: :retry within 4 s, and afterwards the same ID", %{
      cluster: cluster
    } do
      pool = Cluster.pool(cluster)
      options = options(cluster, pool, "pod-1")
      {:ok, 0, lease, _} = acquire(options)

      for nodes <- [[1, 2], [3]] do
        for node <- nodes, do: Cluster.signal(cluster, node, "KILL")
        {ms, result} = timed(fn -> LeaseStrategy.renew(lease, @duration, options) end)
        assert {:error, :retry, reason} = result
        assert reason in [:refused, :unavailable, :timeout, :outcome_unknown, :closed]
        assert ms <= 4_000 + @late_ms
        {ms, {:error, _}} = timed(fn -> acquire(options) end)
        assert ms <= 4_000 + @late_ms
        {ms, :ok} = timed(fn -> LeaseStrategy.release(%{lease | token: "another"}, options) end)
        assert ms <= 2_000 + @late_ms
      end

      for node <- 1..3 |> Enum.map(&Task.async(fn -> Cluster.restart(cluster, &1) end)),
          do: Task.await(node, 60_000)

      Cluster.ready(cluster)
      assert {:ok, ^lease, _} = LeaseStrategy.renew(lease, @duration, options)
      assert {:ok, 0, ^lease, _} = acquire(options)
    end
  end
end
