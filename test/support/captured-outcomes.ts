import type { Operation } from '../../src/contract/operation.ts'
import { OPERATIONS } from '../../src/contract/operations.ts'
import { CreateSandboxInput } from '../../src/contract/sandboxes/spec-input.ts'
import { Problem } from '../../src/domain/problem.ts'
import { normalizeSpec } from '../../src/domain/spec/normalize-spec.ts'
import { requiredAbilities } from '../../src/domain/spec/required-abilities.ts'
import { makeSchemaCompiler } from '../../src/http/requests/schemas/schema-compiler.ts'
import { OCI_ABILITIES } from '../../src/worker/drivers/oci/run/runtime/probe.ts'
import { capturedBodies, capturedRequests, type CapturedBody, type CapturedRequest } from './contract.ts'

/** What becomes of the recorded create bodies of the public clients with the driver `oci`. */

const parse = makeSchemaCompiler({ acceptsEmptyMembers: true })(CreateSandboxInput, 'body')

/** The recorded bodies that fit the schema and the rules for specifications. A worker may still lack an ability. */
export function understoodBodies(): readonly CapturedBody[] {
  const isUnderstood = (body: unknown): boolean => {
    try {
      return 'normalized' in normalizeSpec(parse(body))
    } catch (error) {
      if (error instanceof Problem) return false
      throw error
    }
  }
  return capturedBodies().filter(({ body }) => isUnderstood(body))
}

/** The fields for which a body is refused, in the order in which they are found. None: it is accepted. */
export function refusedFields(body: unknown): readonly string[] {
  try {
    const result = normalizeSpec(parse(body))
    if ('refusal' in result) return [result.refusal.field]
    return requiredAbilities(result.normalized.spec)
      .filter(({ ability }) => !OCI_ABILITIES.includes(ability))
      .map(({ field }) => field)
  } catch (error) {
    if (!(error instanceof Problem)) throw error
    return [String(error.details?.['field'])]
  }
}

/**
 * The rows of the table in docs/clients.md: each refused field, and the recorded bodies that are refused for it. The
 * last row has the others.
 */
export function refusedBodyRows(): readonly (readonly string[])[] {
  const bodies = new Map<string, string[]>()
  for (const { name, body } of capturedBodies()) {
    const field = refusedFields(body)[0]?.replaceAll(/\[\d+\]/g, '[]')
    if (field !== undefined) bodies.set(field, [...(bodies.get(field) ?? []), name])
  }
  const refused = [...bodies.values()].flat().length
  const accepted = [['**accepted**', String(capturedBodies().length - refused), 'all others']]
  const rows = [...bodies]
    .toSorted(([a], [b]) => a.localeCompare(b))
    .map(([field, names]) => [`\`${field}\``, String(names.length), names.toSorted().join(', ')])
  return [...rows, ...accepted]
}

/** Says which of the recorded requests other than creates have a route. */
export function requestRows(): readonly (readonly string[])[] {
  const rows = capturedRequests().map(({ method, url }) => {
    const route = `${method} ${url.replace(/\?.*/, '')}`
    return [`\`${route}\``, operationOf({ method, url }) === null ? '**no such route**' : 'accepted'] as const
  })
  return [...new Map(rows).entries()].toSorted(([a], [b]) => a.localeCompare(b))
}

/** The operation that serves a recorded request, or null. */
export function operationOf({ method, url }: Pick<CapturedRequest, 'method' | 'url'>): Operation | null {
  const path = url.replace(/\?.*/, '').replace('/sandboxes/{id}', '/sandboxes/{sandbox_id}')
  return Object.values<Operation>(OPERATIONS).find((one) => one.method === method && one.path === path) ?? null
}
