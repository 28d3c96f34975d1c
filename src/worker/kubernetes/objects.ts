import type { Clock } from '../../lib/clock.ts'
import type { Log } from '../../lib/log.ts'
import type { ApiClient } from './api-client.ts'
import { isApiError } from './api-error.ts'
import { persistRequest } from './persist-request.ts'

/** Requests for objects of the API, each repeated while the API server has trouble of its own. */

export type ObjectDeps = { readonly client: Pick<ApiClient, 'request'>; readonly clock: Clock; readonly log: Log }

type ObjectRequest = { readonly object: object; readonly signal: AbortSignal }

/** The worker owns the fields that it writes, whoever wrote them before. */
const APPLY = 'fieldManager=sandyard&force=true'

/** Creates an object unless it is there: the answer to an earlier request may have been lost. */
export async function createObject(
  { client, clock, log }: ObjectDeps,
  collection: string,
  { object, signal }: ObjectRequest,
): Promise<void> {
  try {
    await persistRequest(() => client.request('POST', collection, object, { signal }), { signal, clock, log })
  } catch (error) {
    if (!isApiError(error, 409)) throw error
  }
}

/** Applies an object on the server's side: creates it, or changes only the fields that it has. */
export async function applyObject(
  { client, clock, log }: ObjectDeps,
  path: string,
  { object, signal }: ObjectRequest,
): Promise<void> {
  const patch = (): Promise<unknown> => client.request('PATCH', `${path}?${APPLY}`, object, { signal })
  await persistRequest(patch, { signal, clock, log })
}
