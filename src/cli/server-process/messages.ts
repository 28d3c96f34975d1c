import type { DataFolder } from '../server/data-folder.ts'

/** What a further server process needs to begin. */
export type ServerStart = {
  /** Settings by their variables: the database, the port that is shared, the path at which the data folder is mounted. */
  readonly settings: Readonly<Record<string, string>>
  readonly folder: DataFolder
  /** The number of the process among those that share the port. */
  readonly index: number
}

/** A message to a further server process. */
export type ServerOrder = { readonly kind: 'start'; readonly start: ServerStart } | { readonly kind: 'stop' }

/** A message of a further server process: it answers requests. */
export type ServerEvent = { readonly kind: 'ready' }
