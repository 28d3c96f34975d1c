import type { Config } from '../../config.ts'

/** What a command is called with. */
export type Call = {
  readonly config: Config
  /** The words after the command's name. */
  readonly args: readonly string[]
  readonly texts: Readonly<Record<string, string>>
  readonly switches: ReadonlySet<string>
}

/** A command of the program: what it is called with, what it is for, and what it does. Answers the exit code. */
export type Command = {
  readonly usage: string
  readonly summary: string
  /** What `sandyard NAME --help` says beside these. */
  readonly details?: string
  readonly run: (call: Call) => Promise<number>
}

/** A call whose words are off; the message says what would be right. */
export class UsageError extends Error {}
