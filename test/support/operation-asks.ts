import { OPERATIONS, type OperationId } from '../../src/contract/operations.ts'
import { SANDBOX_ID } from './http-world.ts'

/** A body that an operation accepts, for those that need one. */
const BODIES: Partial<Record<OperationId, object>> = {
  create_sandbox: { image: 'registry.example/box:1' },
  create_api_key: { name: 'made', scopes: ['read'], expires_at: null },
  create_volume: { name: 'made' },
  save_registry_credential: { host: 'registry.example', username: 'me', password: 'secret' },
}

/** A request that an operation accepts: of the sandbox, event or whatever else that the world of `http-world.ts` holds. */
export function askOf(id: OperationId): {
  readonly method: (typeof OPERATIONS)[OperationId]['method']
  readonly url: string
  readonly body?: object
} {
  const { method, path } = OPERATIONS[id]
  const url = path.replace('{name}', 'demo').replaceAll(/\{\w+\}/g, SANDBOX_ID)
  return { method, url, ...(method === 'GET' ? {} : { body: BODIES[id] ?? {} }) }
}
