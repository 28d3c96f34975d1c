import { problemsOf, type Operation } from '../../src/contract/operation.ts'
import { OPERATIONS } from '../../src/contract/operations.ts'
import { PROBLEMS, publicCode, type ProblemCode } from '../../src/domain/problem.ts'

/**
 * How the public clients (0.6.18 to 0.7.13) turn a refusal into an error of their own: by its code, if they know the
 * code, and else by its status and the route.
 */

const BY_CODE: Readonly<Partial<Record<string, string>>> = {
  sandbox_not_found: 'SandboxNotFound',
  volume_not_found: 'VolumeNotFound',
  volume_file_not_found: 'SandboxFsOps',
  invalid_request: 'InvalidConfig',
  invalid_sandbox_config: 'InvalidConfig',
  invalid_volume_path: 'InvalidConfig',
  orchestrator_unreachable: 'Runtime',
  nomad_job_failed: 'Runtime',
  name_already_exists: 'SandboxAlreadyExists',
  snapshot_not_found: 'SnapshotNotFound',
  snapshot_operation_not_found: 'SnapshotNotFound',
  snapshot_name_already_exists: 'SnapshotAlreadyExists',
  snapshot_already_exists: 'SnapshotAlreadyExists',
  modification_unsupported: 'Unsupported',
  modification_refused: 'Custom',
  modification_failed: 'ModificationNotConfirmed',
}

const BY_STATUS: Readonly<Partial<Record<number, string>>> = {
  400: 'InvalidConfig',
  422: 'InvalidConfig',
  502: 'Runtime',
}

const CREATED_BY: Readonly<Partial<Record<string, string>>> = {
  'POST /v1/sandboxes': 'SandboxAlreadyExists',
  'POST /v1/volumes': 'VolumeAlreadyExists',
  'POST /v1/snapshots': 'SnapshotAlreadyExists',
}

/** The error that a client shows for a refusal of an operation. */
export function clientError({ method, path }: Operation, problem: ProblemCode): string {
  const code = publicCode(problem)
  const { status } = PROBLEMS[problem]
  const known = code === 'name_already_exists' && path === '/v1/snapshots' ? 'SnapshotAlreadyExists' : BY_CODE[code]
  return known ?? BY_STATUS[status] ?? byRoute(`${method} ${path}`, status) ?? 'CloudHttp'
}

function byRoute(route: string, status: number): string | undefined {
  if (status === 409) return CREATED_BY[route]
  if (status !== 404) return undefined
  if (route.includes(' /v1/snapshot')) return 'SnapshotNotFound'
  const isOfVolume = route.includes(' /v1/volumes') && !route.includes('/files')
  return isOfVolume ? 'VolumeNotFound' : 'SandboxNotFound'
}

/** The operations that the public clients call: all of sandboxes, volumes and snapshots but renames and waits. */
export function clientOperations(): readonly Operation[] {
  const isCalled = ({ id, path }: Operation): boolean =>
    /^\/v1\/(?:sandboxes|volumes|snapshot)/.test(path) && !/^(?:wait_for|update)_/.test(id)
  return Object.values<Operation>(OPERATIONS).filter(isCalled)
}

/** The rows of the table in docs/clients.md: each code, its status, and the errors that clients show for it. */
export function clientErrorRows(): readonly (readonly string[])[] {
  const codes = new Map<ProblemCode, Map<string, Operation[]>>()
  for (const operation of clientOperations()) {
    for (const code of problemsOf(operation)) {
      const errors = codes.get(code) ?? new Map<string, Operation[]>()
      const error = clientError(operation, code)
      errors.set(error, [...(errors.get(error) ?? []), operation])
      codes.set(code, errors)
    }
  }
  return [...codes]
    .map(
      ([code, errors]) => [`\`${publicCode(code)}\``, String(PROBLEMS[code].status), describeErrors(errors)] as const,
    )
    .toSorted(([a, x], [b, y]) => x.localeCompare(y) || a.localeCompare(b))
}

/** The error of most routes first, and each other error with its routes. */
function describeErrors(errors: ReadonlyMap<string, readonly Operation[]>): string {
  const [most, ...others] = [...errors].toSorted(([, a], [, b]) => b.length - a.length)
  const routes = (operations: readonly Operation[]): string =>
    operations.map(({ method, path }) => `\`${method} ${path}\``).join(', ')
  return [`\`${most?.[0] ?? ''}\``, ...others.map(([error, of]) => `\`${error}\` of ${routes(of)}`)].join('; ')
}
