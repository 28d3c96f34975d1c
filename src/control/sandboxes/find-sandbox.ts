import { nearestNames } from '../../domain/edit-distance.ts'
import { asId, type OrgId, type SandboxId } from '../../domain/ids.ts'
import { Problem } from '../../domain/problem.ts'
import { escapeControls } from '../../lib/terminal-text.ts'
import { isUuid } from '../../lib/uuid.ts'
import * as operatorSandboxes from '../../store/sandboxes/operator-sandboxes.ts'
import type { Queryable } from '../../store/postgres/database.ts'
import type { BaseDeps } from '../deps.ts'

export type { SandboxCandidate } from '../../store/sandboxes/operator-sandboxes.ts'

/** The maximum number of candidates in a refusal. */
const CANDIDATES_SHOWN = 10
/** How many names are compared with a name that doesn't exist. */
const NAMES_COMPARED = 5_000
const NEAREST_SHOWN = 3

/**
 * Finds the sandbox that an operator means by an id, a slug, a name, or the beginning of an id; in one organization, or
 * in all of them (null). A deleted sandbox is found by its id, or by its name if no other has it. Throws
 * `sandbox_not_found`, with similar names, and `invalid_request` with the candidates if there are several.
 */
export async function findSandbox(
  { db }: Pick<BaseDeps, 'db'>,
  text: string,
  org: OrgId | null,
): Promise<operatorSandboxes.SandboxCandidate> {
  return db.asSystem(async (q) => {
    for (const find of [byId, byName, byDeletedName, byIdPrefix]) {
      const [only, ...others] = await find(q, text, org)
      if (only !== undefined && others.length === 0) return only
      if (only !== undefined) throw ambiguous(text, [only, ...others])
    }
    const names = await operatorSandboxes.newestNames(q, org, NAMES_COMPARED)
    throw notFound(text, nearestNames(text, names, NEAREST_SHOWN))
  })
}

type Find = (q: Queryable, text: string, org: OrgId | null) => Promise<readonly operatorSandboxes.SandboxCandidate[]>

const byId: Find = async (q, text, org_id) =>
  isUuid(text) ? operatorSandboxes.findByIdRange(q, { from: text, to: text, org_id }, 1) : []

const byName: Find = (q, text, org) => operatorSandboxes.findNamed(q, text, org, CANDIDATES_SHOWN + 1)

const byDeletedName: Find = (q, text, org) => operatorSandboxes.findDeletedNamed(q, text, org, CANDIDATES_SHOWN + 1)

const byIdPrefix: Find = async (q, text, org_id) => {
  const from = completeId(text, '0')
  const to = completeId(text, 'f')
  if (from === null || to === null) return []
  return operatorSandboxes.findByIdRange(q, { from, to, org_id }, CANDIDATES_SHOWN + 1)
}

const ID_DIGITS = 32
const MIN_PREFIX_DIGITS = 4

/** Completes the beginning of an id with a digit. Returns null if the text is no beginning of an id. */
function completeId(text: string, digit: '0' | 'f'): SandboxId | null {
  const digits = text.toLowerCase().replaceAll('-', '')
  if (!/^[0-9a-f]+$/.test(digits) || digits.length < MIN_PREFIX_DIGITS || digits.length > ID_DIGITS) return null
  return asId<SandboxId>(digits.padEnd(ID_DIGITS, digit).replace(/^(.{8})(.{4})(.{4})(.{4})(.{12})$/, '$1-$2-$3-$4-$5'))
}

function ambiguous(text: string, candidates: readonly operatorSandboxes.SandboxCandidate[]): Problem {
  const shown = candidates.slice(0, CANDIDATES_SHOWN)
  const lines = shown.map(({ org, name, slug, id }) => `  ${id}  ${slug}  '${name}' of the organization '${org}'`)
  const more = candidates.length > shown.length ? ['  …'] : []
  const inSeveralOrgs = new Set(candidates.map(({ org }) => org)).size > 1
  const how = inSeveralOrgs ? 'name the organization by --org, or use an id or a slug' : 'use a longer id, or a slug'
  return new Problem('invalid_request', {
    message: [`'${text}' names several sandboxes; ${how}:`, ...lines.map(escapeControls), ...more].join('\n'),
  })
}

function notFound(text: string, nearest: readonly string[]): Problem {
  const hint =
    nearest.length === 0 ? '`sandyard ps --all` lists all' : `did you mean ${escapeControls(nearest.join(', '))}?`
  return new Problem('sandbox_not_found', { message: `there is no sandbox '${text}'; ${hint}` })
}
