/** `PascalCase<'if_missing'>` is `'IfMissing'`. */
export type PascalCase<Text extends string> = Text extends `${infer Head}_${infer Tail}`
  ? `${Capitalize<Head>}${PascalCase<Tail>}`
  : Capitalize<Text>

/**
 * The spellings of a member of a closed set in a request: snake_case as clients send it, or the PascalCase of replies.
 */
export type EitherCasing<Text extends string> = Text | PascalCase<Text>

/** The PascalCase spelling of a snake_case word. */
export function pascalCase<Text extends string>(text: Text): PascalCase<Text> {
  const words = text.split('_').map((word) => word.charAt(0).toUpperCase() + word.slice(1))
  return words.join('') as PascalCase<Text> // the computation matches the type
}

/** Every accepted spelling of a closed set: the snake_case ones first, then the PascalCase ones. */
export function eitherCasing<const Text extends string>(values: readonly Text[]): EitherCasing<Text>[] {
  return [...values, ...values.map((value) => pascalCase(value))]
}

/** The snake_case member of a spelling. Throws for a spelling that `eitherCasing` does not list. */
export function snakeCase<const Text extends string>(values: readonly Text[], spelt: EitherCasing<Text>): Text {
  const found = values.find((value) => value === spelt || pascalCase(value) === spelt)
  if (found === undefined) throw new Error(`not a spelling of ${values.join(', ')}`)
  return found
}
