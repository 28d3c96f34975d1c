import { changeOrgPlan, createOrg, listOrgs, resumeOrg, suspendOrg } from '../../control/orgs/orgs.ts'
import { keysetPages } from './page-of.ts'
import { openOperatorDeps, type OperatorDeps } from './borrow-control.ts'
import { findOrg, asOperator } from './choose-org.ts'
import { UsageError, type Call, type Command } from './command.ts'
import { printList } from './print-list.ts'

export const org: Command = {
  usage:
    'org create NAME --owner EMAIL [--slug S] [--plan P] | list [--json] | suspend SLUG [--reason R] | resume SLUG | plan SLUG PLAN',
  summary: 'the organizations of this installation',
  details: `Each organization has its own sandboxes, volumes, members, keys, limits and bills.

  create   makes one with its owner; make it a key by: sandyard key create --org SLUG
  suspend  refuses its starts and stops what runs, within seconds; nothing is deleted
  resume   lets it start sandboxes again; nothing starts by itself
  plan     gives it the limits and prices of another plan, at once; see: sandyard plan list
`,
  async run(call) {
    const act = readAct(call)
    await using control = await openOperatorDeps(call.config)
    await act(control)
    return 0
  },
}

type Act = (control: OperatorDeps) => Promise<void>

function readAct({ args, texts, switches }: Call): Act {
  const [verb, given, word, ...rest] = args
  if (verb === 'list' && given === undefined) return switches.has('json') ? listJson : list
  if (given !== undefined && rest.length === 0) {
    const { owner, reason = null } = texts
    if (verb === 'create' && word === undefined && owner !== undefined)
      return creating({ name: given, owner, slug: texts['slug'] ?? null, plan: texts['plan'] ?? null })
    if (verb === 'suspend' && word === undefined) return suspending(given, reason)
    if (verb === 'resume' && word === undefined) return resuming(given)
    if (verb === 'plan' && word !== undefined) return moving(given, word)
  }
  throw new UsageError(`usage: sandyard ${org.usage}`)
}

function creating(input: Parameters<typeof createOrg>[1]): Act {
  return async (control) => {
    const { slug } = await createOrg(control, input)
    process.stdout.write(`made the organization '${slug}'; make it a key by: sandyard key create --org ${slug}\n`)
  }
}

function suspending(slug: string, reason: string | null): Act {
  return async (control) => {
    await suspendOrg(control, asOperator(await findOrg(control.db, slug)), reason)
    process.stdout.write(`${slug} is suspended: what runs is stopped, and nothing starts\n`)
  }
}

function resuming(slug: string): Act {
  return async (control) => {
    await resumeOrg(control, asOperator(await findOrg(control.db, slug)))
    process.stdout.write(`${slug} may start sandboxes\n`)
  }
}

function moving(slug: string, plan: string): Act {
  return async (control) => {
    await changeOrgPlan(control, asOperator(await findOrg(control.db, slug)), plan)
    process.stdout.write(`${slug} is on the plan '${plan}'\n`)
  }
}

function list(control: OperatorDeps): Promise<void> {
  return printList(
    ['SLUG', 'NAME', 'PLAN', 'OVERRIDES', 'SUSPENDED'],
    keysetPages(
      (after, limit) => listOrgs(control, after, limit),
      ({ slug }) => slug,
    ),
    ({ slug, name, plan, quota_overrides, suspended_at }) => [
      slug,
      name,
      plan,
      String(Object.keys(quota_overrides).length),
      suspended_at?.toISOString() ?? null,
    ],
  )
}

/** How many organizations are read together. */
const JSON_PAGE = 100

async function listJson(control: OperatorDeps): Promise<void> {
  const all: Awaited<ReturnType<typeof listOrgs>>[number][] = []
  for (let after: string | null = null; ;) {
    const page: readonly (typeof all)[number][] = await listOrgs(control, after, JSON_PAGE)
    all.push(...page)
    after = page.at(-1)?.slug ?? null
    if (page.length < JSON_PAGE) break
  }
  process.stdout.write(`${JSON.stringify(all, null, 2)}\n`)
}
