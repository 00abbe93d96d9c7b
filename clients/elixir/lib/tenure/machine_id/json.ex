defmodule Tenure.MachineId.Json do
  # JSON without a dependency. A decoder is chosen at run time, so that it does not matter in which order
  # applications are compiled: JSON (Elixir 1.18), :json (OTP 27), Jason, and last the one below.
  #
  # All of them give the same terms for what tenure answers: objects are maps with string keys, null is nil,
  # integers stay below 2^53. The encoder knows what requests are made of and nothing else.
  #
  # Not promised: which of two equal names in an object wins; floats beyond what a double holds.
  @moduledoc false

  # No answer that is asked for here is larger: a page of holders is the largest.
  @bytes_max 1_048_576
  @depth_max 32

  @doc "Which decoder is used."
  @spec decoder() :: JSON | :json | Jason | __MODULE__
  def decoder, do: hd(decoders())

  @doc "Those that are there, best first."
  @spec decoders() :: [module(), ...]
  def decoders do
    ladder = [{JSON, :decode, 1}, {:json, :decode, 3}, {Jason, :decode, 1}]
    found = for {module, name, arity} <- ladder, there?(module, name, arity), do: module
    found ++ [__MODULE__]
  end

  defp there?(module, name, arity) do
    Code.ensure_loaded?(module) and function_exported?(module, name, arity)
  end

  @doc "Decodes one JSON text."
  @spec decode(term(), module()) :: {:ok, term()} | :error
  def decode(text, decoder \\ decoder())

  def decode(text, decoder) when is_binary(text) and byte_size(text) <= @bytes_max do
    with_decoder(decoder, text)
  catch
    _kind, _reason -> :error
  end

  def decode(_text, _decoder), do: :error

  # apply/3: a direct call would be warned about where the module is absent.
  defp with_decoder(:json, text) do
    case apply(:json, :decode, [text, :none, %{null: nil}]) do
      {term, :none, rest} -> if blank(rest) == "", do: {:ok, term}, else: :error
      _other -> :error
    end
  end

  defp with_decoder(__MODULE__, text) do
    {term, rest} = value(blank(text), @depth_max)
    if blank(rest) == "", do: {:ok, term}, else: :error
  end

  defp with_decoder(module, text) do
    case apply(module, :decode, [text]) do
      {:ok, term} -> {:ok, term}
      _other -> :error
    end
  end

  ## Decoder. Whatever it does not expect is thrown, and caught in decode/2.

  defp blank(<<c, rest::binary>>) when c in ~c" \t\r\n", do: blank(rest)
  defp blank(rest), do: rest

  defp value(_text, 0), do: throw(:too_deep)
  defp value("{" <> rest, depth), do: object(blank(rest), depth - 1)
  defp value("[" <> rest, depth), do: array(blank(rest), depth - 1)
  defp value("\"" <> rest, _depth), do: string(rest, [])
  defp value("true" <> rest, _depth), do: {true, rest}
  defp value("false" <> rest, _depth), do: {false, rest}
  defp value("null" <> rest, _depth), do: {nil, rest}
  defp value(text, _depth), do: number(text)

  defp object("}" <> rest, _depth), do: {%{}, rest}
  defp object(text, depth), do: members(text, depth, [])

  defp members("\"" <> rest, depth, done) do
    {name, rest} = string(rest, [])
    ":" <> rest = blank(rest)
    {value, rest} = value(blank(rest), depth)
    done = [{name, value} | done]

    case blank(rest) do
      "," <> rest -> members(blank(rest), depth, done)
      "}" <> rest -> {done |> Enum.reverse() |> Map.new(), rest}
    end
  end

  defp array("]" <> rest, _depth), do: {[], rest}
  defp array(text, depth), do: items(text, depth, [])

  defp items(text, depth, done) do
    {value, rest} = value(text, depth)
    done = [value | done]

    case blank(rest) do
      "," <> rest -> items(blank(rest), depth, done)
      "]" <> rest -> {Enum.reverse(done), rest}
    end
  end

  defp string("\"" <> rest, done), do: {done |> Enum.reverse() |> IO.iodata_to_binary(), rest}
  defp string("\\u" <> rest, done), do: unicode(rest, done)

  defp string(<<"\\", c, rest::binary>>, done) do
    string(rest, [
      Map.fetch!(%{?" => ?", ?\\ => ?\\, ?/ => ?/, ?b => 8, ?f => 12, ?n => 10, ?r => 13, ?t => 9}, c) | done
    ])
  end

  defp string(<<c::utf8, rest::binary>>, done) when c >= 0x20, do: string(rest, [<<c::utf8>> | done])

  defp unicode(<<high::binary-size(4), "\\u", low::binary-size(4), rest::binary>> = text, done) do
    case {unit(high), unit(low)} do
      {high, low} when high in 0xD800..0xDBFF and low in 0xDC00..0xDFFF ->
        character = 0x10000 + (high - 0xD800) * 0x400 + (low - 0xDC00)
        string(rest, [<<character::utf8>> | done])

      _no_pair ->
        lone(text, done)
    end
  end

  defp unicode(text, done), do: lone(text, done)

  # A lone surrogate is no character: <<_::utf8>> raises.
  defp lone(<<digits::binary-size(4), rest::binary>>, done), do: string(rest, [<<unit(digits)::utf8>> | done])

  defp unit(<<digits::binary-size(4)>>) do
    true = digits =~ ~r/\A[0-9a-fA-F]{4}\z/
    String.to_integer(digits, 16)
  end

  # No module attribute: from OTP 28 on none can hold a regex.
  defp number(text) do
    number = ~r/\A-?(?:0|[1-9][0-9]*)(?<fraction>\.[0-9]+)?(?<exponent>[eE][+-]?[0-9]+)?/
    [all, fraction, exponent] = Regex.run(number, text, capture: [0, "fraction", "exponent"])
    rest = binary_part(text, byte_size(all), byte_size(text) - byte_size(all))
    {number(all, fraction, exponent), rest}
  end

  defp number(all, "", ""), do: String.to_integer(all)
  defp number(all, "", exponent), do: all |> String.replace(exponent, ".0" <> exponent) |> String.to_float()
  defp number(all, _fraction, _exponent), do: String.to_float(all)

  ## Encoder

  @doc "Encodes a map of strings, integers, booleans and such maps. Raises on anything else, and on what is not UTF-8."
  @spec encode(map()) :: String.t()
  def encode(map) when is_map(map), do: map |> encoded() |> IO.iodata_to_binary()

  defp encoded(map) when is_map(map) do
    members = for {name, value} <- map, do: [quoted(to_string(name)), ?:, encoded(value)]
    [?{, Enum.intersperse(members, ?,), ?}]
  end

  defp encoded(value) when is_boolean(value), do: to_string(value)
  defp encoded(value) when is_integer(value), do: to_string(value)
  defp encoded(value) when is_binary(value), do: quoted(value)

  defp quoted(text), do: [?", for(<<c::utf8 <- valid(text)>>, do: escaped(c)), ?"]

  defp valid(text), do: if(String.valid?(text), do: text, else: raise(ArgumentError, "not UTF-8"))

  defp escaped(?"), do: "\\\""
  defp escaped(?\\), do: "\\\\"

  defp escaped(c) when c < 0x20 or c == 0x7F,
    do: ["\\u", c |> Integer.to_string(16) |> String.pad_leading(4, "0")]

  defp escaped(c), do: <<c::utf8>>
end
