import type { SandboxSpec } from '../../../../domain/spec/spec.ts'
import { StartError } from '../../../start-error.ts'

/** The variable of a container with the limits of its processes. `perl/guest/limits.pl` takes it out of their environment. */
const VARIABLE = 'SANDYARD_RLIMITS'

/**
 * The variable that a container has for the limits of its spec, if there are any. Throws `StartError` of reason
 * `config` for a workload that the node starts itself, and for a spec with a variable of the same name.
 */
export function limitVariables({ env, rlimits, runtime }: SandboxSpec): readonly object[] {
  if (env.some(({ key }) => key === VARIABLE))
    throw new StartError('config', `env '${VARIABLE}': on this worker the variable is the worker's own`)
  if (rlimits.length === 0) return []
  if (runtime.cmd !== null && runtime.entrypoint === null)
    throw new StartError(
      'config',
      'rlimits with runtime.cmd also need runtime.entrypoint on this worker: only the node knows that of the image',
    )
  return [{ name: VARIABLE, value: `${process.arch} ${encodeLimits(rlimits)}` }]
}

/** Encodes limits as `perl/guest/limits.pl` reads them. */
export function encodeLimits(
  limits: readonly { readonly resource: string; readonly soft: number; readonly hard: number }[],
): string {
  return limits
    .map(({ resource, soft, hard }) => `${resource}=${BigInt(soft).toString()}:${BigInt(hard).toString()}`)
    .join(' ')
}
