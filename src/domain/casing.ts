/** `PascalCase<'if_missing'>` is `'IfMissing'`. */
export type PascalCase<Text extends string> = Text extends `${infer Head}_${infer Tail}`
  ? `${Capitalize<Head>}${PascalCase<Tail>}`
  : Capitalize<Text>

/** The spellings of an enum value that a request may use: snake_case, or the PascalCase of replies. */
export type EitherCasing<Text extends string> = Text | PascalCase<Text>

/** The PascalCase spelling of a snake_case word. */
export function pascalCase<Text extends string>(text: Text): PascalCase<Text> {
  const words = text.split('_').map((word) => word.charAt(0).toUpperCase() + word.slice(1))
  return words.join('') as PascalCase<Text> // the computation matches the type
}

/** All accepted spellings of the values of an enum: first all in snake_case, then all in PascalCase. */
export function eitherCasing<const Text extends string>(values: readonly Text[]): EitherCasing<Text>[] {
  return [...values, ...values.map((value) => pascalCase(value))]
}

/** Converts either spelling of an enum value to snake_case. Throws for a text that `eitherCasing` does not list. */
export function snakeCase<const Text extends string>(values: readonly Text[], spelt: EitherCasing<Text>): Text {
  const found = values.find((value) => value === spelt || pascalCase(value) === spelt)
  if (found === undefined) throw new Error(`not a spelling of ${values.join(', ')}`)
  return found
}
