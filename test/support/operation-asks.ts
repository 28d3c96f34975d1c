import { OPERATIONS, type OperationId } from '../../src/contract/operations.ts'
import { asCaller, SANDBOX_ID } from './http-world.ts'

/** A body that an operation accepts, for those that need one. */
const BODIES: Partial<Record<OperationId, object>> = {
  create_sandbox: { image: 'registry.example/box:1' },
  create_api_key: { name: 'made', scopes: ['read'], expires_at: null },
  create_volume: { name: 'made' },
  make_volume_folder: { path: 'a' },
  copy_volume_file: { from: 'a', to: 'b' },
  rename_volume_file: { from: 'a', to: 'b' },
  save_registry_credential: { host: 'registry.example', username: 'me', password: 'secret' },
}

/** For those that are about a file. */
const FILE_PATH = { 'x-msb-file-path': Buffer.from('a').toString('base64url') }

/** A request that an operation accepts: of the sandbox, event or whatever else that the world of `http-world.ts` holds. */
export function askOf(id: OperationId): {
  readonly method: (typeof OPERATIONS)[OperationId]['method']
  readonly url: string
  readonly body?: object
  readonly headers: Record<string, string>
} {
  const { method, path } = OPERATIONS[id]
  const url = path.replace('{name}', 'demo').replaceAll(/\{\w+\}/g, SANDBOX_ID)
  const headers = { ...asCaller, ...('headers' in OPERATIONS[id] ? FILE_PATH : {}) }
  return { method, url, headers, ...(method === 'GET' ? {} : { body: BODIES[id] ?? {} }) }
}
