defmodule Tenure.MachineId.JsonTest do
  use ExUnit.Case, async: false

  alias Tenure.MachineId.Json

  # Each of the ladder that is found here: on Elixir 1.18 also JSON, on OTP 27 also :json, beside an application that
  # has Jason also that. The own one always.
  for decoder <- Json.decoders() do
    describe "#{inspect(decoder)}" do
      @decoder decoder

      test "values" do
        for {text, term} <- [
              {~s({"result":null,"reason":"exhausted","retry_after_ms":1200}),
               %{"result" => nil, "reason" => "exhausted", "retry_after_ms" => 1200}},
              {~s( { "a" : [ 1 , -2 , 0 , true , false , null , [ ] , { } ] } ),
               %{"a" => [1, -2, 0, true, false, nil, [], %{}]}},
              {~s([9007199254740991,-9007199254740991]), [9_007_199_254_740_991, -9_007_199_254_740_991]},
              {~s([1.5,-0.25,1.0e3,1E-2]), [1.5, -0.25, 1000.0, 0.01]},
              {~S("\"\\\/\b\f\n\r\t"), "\"\\/\b\f\n\r\t"},
              {~S("\u00e9\u20AC é \ud83d\ude00 😀"), "é€ é 😀 😀"},
              {~s(""), ""},
              {~s("\d"), "\d"},
              {"\t\r\n null \n", nil}
            ] do
          assert Json.decode(text, @decoder) == {:ok, term}, text
        end
      end

      test "refusals" do
        for text <- [
              "",
              " ",
              "{",
              "[1,",
              "[1,]",
              ~s({"a"}),
              ~s({"a":1,}),
              ~s({a:1}),
              ~s({"a":1}x),
              "nul",
              "01",
              "1.",
              ".5",
              "+1",
              "- 1",
              ~s("a),
              ~s("\n"),
              ~S("\x"),
              ~S("\u12g4"),
              <<?", 0xFF, ?">>,
              "<html></html>"
            ] do
          assert Json.decode(text, @decoder) == :error, text
        end
      end
    end
  end

  test "the own one refuses depth, and lone surrogates" do
    deep = String.duplicate("[", 40) <> String.duplicate("]", 40)
    assert Json.decode(deep, Json) == :error

    for text <- [~S("\ud83d"), ~S("\ude00"), ~S("\ud83dx"), ~S("\ud83d\u0041")],
        do: assert(Json.decode(text, Json) == :error)
  end

  test "none takes more than a node sends, or what is no text" do
    large = ~s(") <> String.duplicate("a", 1_048_577) <> ~s(")
    assert Json.decode(large) == :error
    assert Json.decode(~c"{}") == :error
    assert Json.decode(nil) == :error
  end

  test "what is written is what is read" do
    map = %{
      "key" => "ids \"quoted\" \\ / é 😀 \d",
      "args" => %{"ttl_ms" => 9_007_199_254_740_991, "avoid" => 0, "once" => true, "note" => "a\n\u0001b"}
    }

    for decoder <- Json.decoders(), do: assert(Json.decode(Json.encode(map), decoder) == {:ok, map})
    assert_raise ArgumentError, fn -> Json.encode(%{"key" => <<0xFF>>}) end
  end

  describe "the ladder" do
    # Stands for a package that is not here. It is found although it came after this was compiled.
    @tag skip: Code.ensure_loaded?(Jason) and "Jason is here"
    test "takes Jason where it comes to be, and the own one where it is gone" do
      better = Json.decoders() -- [Json]

      Code.compile_string("""
      defmodule Jason do
        def decode(text), do: with({:ok, term} <- Tenure.MachineId.Json.decode(text, Tenure.MachineId.Json), do: {:ok, {:jason, term}})
      end
      """)

      assert Json.decoders() == better ++ [Jason, Json]
      if better == [], do: assert(Json.decode("[1]") == {:ok, {:jason, [1]}})
      assert Json.decode("[1", Jason) == :error
    after
      :code.purge(Jason)
      :code.delete(Jason)
      assert Jason not in Json.decoders()
    end

    # Elixir before 1.18, OTP before 27.
    @tag skip: (Code.ensure_loaded?(JSON) or Code.ensure_loaded?(:json)) and "JSON and :json are real here"
    test "prefers JSON to :json, and gives :json's null as nil" do
      Code.compile_string("""
      defmodule JSON do
        def decode(_text), do: {:ok, :from_elixir}
      end
      defmodule :json do
        def decode("null ", :none, %{null: null}), do: {null, :none, " "}
        def decode("1 2", :none, _), do: {1, :none, " 2"}
        def decode(_text, :none, _), do: :erlang.error(:unexpected_end)
      end
      """)

      assert Enum.take(Json.decoders(), 2) == [JSON, :json]
      assert Json.decode("[]") == {:ok, :from_elixir}
      assert Json.decode("null ", :json) == {:ok, nil}
      assert Json.decode("1 2", :json) == :error
      assert Json.decode("", :json) == :error
    after
      for module <- [JSON, :json] do
        :code.purge(module)
        :code.delete(module)
      end
    end
  end
end
