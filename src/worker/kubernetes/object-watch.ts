import { createInterface } from 'node:readline'
import { interruptibleSleep, type Clock } from '../../lib/clock.ts'
import type { Log } from '../../lib/log.ts'
import { ApiError, isApiError } from './api-error.ts'
import type { ApiClient } from './api-client.ts'

/** What every object of the API has. */
export type ApiObject = {
  readonly metadata: { readonly name: string; readonly uid: string; readonly resourceVersion: string }
}

/** A copy of the objects that match a selector, which follows the API server's. */
export type ObjectWatch<Item extends ApiObject> = {
  /** Resolves once the first list was read. Rejects with why it could not be read. */
  readonly ready: Promise<void>
  /** The newest known state of an object, by its name. */
  get(name: string): Item | undefined
  all(): readonly Item[]
  /** Takes over a state that a request returned, unless a later one is known already. */
  note(item: Item): void
  close(): Promise<void>
}

type WatchInput<Item extends ApiObject> = {
  readonly client: Pick<ApiClient, 'request' | 'open'>
  /** The path of the collection, such as `/api/v1/namespaces/default/pods`. */
  readonly path: string
  readonly labelSelector: string
  /** Called for each change. `is` is null for an object that is gone; `was` is then its last state, as its deletion reported it. */
  readonly onChange: (change: { readonly was: Item | null; readonly is: Item | null }) => void
  readonly clock: Clock
  readonly log: Log
}

type List<Item> = {
  readonly metadata: { readonly resourceVersion: string; readonly continue?: string }
  readonly items: readonly Item[]
}
type WatchEvent<Item> = {
  readonly type: 'ADDED' | 'MODIFIED' | 'DELETED' | 'BOOKMARK' | 'ERROR'
  readonly object: Item & { readonly code?: number; readonly reason?: string; readonly message?: string }
}

const PAGE = 500
/** The API server ends each watch by then, and a watch that is silent for longer is taken as broken. */
const WATCH_SECS = 240
/** How long nothing at all may arrive. Bookmarks come about each minute. */
const SILENCE_MS = 150_000
const FIRST_PAUSE_MS = 200
const LONGEST_PAUSE_MS = 10_000

/**
 * Lists the objects and then watches them, until `close`. A watch that ends goes on at its last version. If the API server no longer
 * has that version (410), the objects are listed again, and what is no longer in the list is reported as gone.
 */
export function watchObjects<Item extends ApiObject>(input: WatchInput<Item>): ObjectWatch<Item> {
  const { client, path, onChange, clock, log } = input
  const objects = new Map<string, Item>()
  const closing = new AbortController()
  const ready = Promise.withResolvers<void>()
  let version: string | null = null

  const put = (item: Item): void => {
    const was = objects.get(item.metadata.name) ?? null
    if (was !== null && isOlder(item, was)) return
    objects.set(item.metadata.name, item)
    onChange({ was, is: item })
  }
  const drop = (last: Item): void => {
    const known = objects.get(last.metadata.name)
    if (known !== undefined && known.metadata.uid !== last.metadata.uid) return // another object has the name by now
    objects.delete(last.metadata.name)
    onChange({ was: last, is: null })
  }
  const list = async (): Promise<void> => {
    const found = new Map<string, Item>()
    for (let next = ''; ;) {
      const query = new URLSearchParams({
        labelSelector: input.labelSelector,
        limit: String(PAGE),
        ...(next === '' ? {} : { continue: next }),
      })
      const page = await client.request<List<Item>>('GET', `${path}?${query.toString()}`, undefined, closing)
      for (const item of page.items) found.set(item.metadata.name, item)
      version = page.metadata.resourceVersion
      next = page.metadata.continue ?? ''
      if (next === '') break
    }
    for (const item of found.values()) put(item)
    // An object that a request has just created is newer than the list, and not in it.
    for (const item of objects.values()) if (!found.has(item.metadata.name) && !isNewer(item, version)) drop(item)
  }
  const follow = async (from: string): Promise<void> => {
    const query = new URLSearchParams({
      labelSelector: input.labelSelector,
      watch: 'true',
      allowWatchBookmarks: 'true',
      resourceVersion: from,
      timeoutSeconds: String(WATCH_SECS),
    })
    const reply = await client.open(`${path}?${query.toString()}`, closing.signal)
    reply.setTimeout(SILENCE_MS, () => reply.destroy(new Error('the watch is silent')))
    for await (const line of createInterface({ input: reply })) {
      const { type, object } = JSON.parse(line) as WatchEvent<Item> // the API server's format
      if (type === 'ERROR')
        throw new ApiError(object.code ?? 0, object.reason ?? '', object.message ?? 'the watch failed')
      version = object.metadata.resourceVersion
      if (type === 'DELETED') drop(object)
      else if (type !== 'BOOKMARK') put(object)
    }
  }
  const run = async (): Promise<void> => {
    let pauseMs = FIRST_PAUSE_MS
    while (!closing.signal.aborted) {
      try {
        if (version === null) {
          await list()
          ready.resolve()
        }
        if (version !== null) await follow(version)
        pauseMs = FIRST_PAUSE_MS
      } catch (error) {
        if (closing.signal.aborted) return
        if (isApiError(error, 401, 403)) ready.reject(error)
        if (isApiError(error, 410)) version = null
        else log.warn({ error, path }, 'watching the objects of the cluster failed; trying again')
        await interruptibleSleep(clock, pauseMs, closing.signal)
        pauseMs = Math.min(pauseMs * 2, LONGEST_PAUSE_MS)
      }
    }
  }
  const running = run()
  return {
    ready: ready.promise,
    get: (name) => objects.get(name),
    all: () => [...objects.values()],
    note: put,
    async close() {
      ready.reject(new Error('closed'))
      closing.abort(new Error('closed'))
      await running
    },
  }
}

/** Whether an object's state is older than another one of the same object. Versions of the API server are numbers that grow. */
function isOlder(item: ApiObject, than: ApiObject): boolean {
  return (
    item.metadata.uid === than.metadata.uid &&
    BigInt(item.metadata.resourceVersion) < BigInt(than.metadata.resourceVersion)
  )
}

function isNewer({ metadata }: ApiObject, version: string | null): boolean {
  return version !== null && BigInt(metadata.resourceVersion) > BigInt(version)
}
