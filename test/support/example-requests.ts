import { OPERATIONS, type OperationId } from '../../src/contract/operations.ts'
import { EXAMPLE_REQUESTS, type KeyedOperation, type ExampleObjects } from './every-operation.ts'
import { SANDBOX_ID, theSandbox } from './http-world.ts'

const one = { id: SANDBOX_ID, name: theSandbox.name }
const THINGS: ExampleObjects = {
  mark: '1',
  worker: 'worker-1',
  idle: one,
  running: one,
  volume: one,
  event_id: SANDBOX_ID,
  api_key_id: SANDBOX_ID,
  credential_id: SANDBOX_ID,
  ssh_key_id: SANDBOX_ID,
  member_id: SANDBOX_ID,
  webhook: { id: SANDBOX_ID, delivery_id: SANDBOX_ID },
  preview: { id: '00000000-0000-7000-8000-000000000009' },
  snapshot: { id: SANDBOX_ID, operation_id: SANDBOX_ID, name: 'nightly' },
}

/** A request that an operation accepts. Its paths name the objects of the world in `http-world.ts`. */
export function exampleRequest(id: OperationId): {
  readonly method: (typeof OPERATIONS)[OperationId]['method']
  readonly url: string
  readonly body?: object
} {
  const { method, path } = OPERATIONS[id]
  const keyed: Partial<Record<OperationId, (typeof EXAMPLE_REQUESTS)[KeyedOperation]>> = EXAMPLE_REQUESTS
  const { params = {}, body = {} } = keyed[id]?.ask(THINGS) ?? {}
  const url = path.replaceAll(/\{(\w+)\}/g, (_, name: string) => params[name] ?? '')
  return { method, url, ...(method === 'GET' ? {} : { body }) }
}
