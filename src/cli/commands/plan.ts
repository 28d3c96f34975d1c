import { readFile } from 'node:fs/promises'
import { getPlan, listPlans, setPlan } from '../../control/orgs/plans.ts'
import { PRICES, type Plan } from '../../domain/orgs/plan.ts'
import { LIMITS } from '../../domain/orgs/quota.ts'
import { openOperatorDeps, type OperatorDeps } from './borrow-control.ts'
import { UsageError, type Call, type Command } from './command.ts'

export const plan: Command = {
  usage: 'plan list [--json] | show NAME | set NAME FILE.json',
  summary: 'what the organizations on a plan may have, and what their use costs',
  details: `FILE.json, or - for standard input, holds {"limits": {…}, "prices": {…}}. A limit that is absent or null is
unlimited. Without prices nothing can be charged, so that the included vCPU and memory hours are walls. What
\`plan show\` prints can be set. It holds at once for every organization on the plan.

limits, whole numbers:
${Object.entries(LIMITS)
  .map(([name, { unit, what }]) => `  ${name}\n      ${what} [${unit}]`)
  .join('\n')}
prices, whole numbers of millionths of a cent:
${PRICES.map((name) => `  ${name}`).join('\n')}
`,
  async run(call) {
    const act = readAct(call)
    await using control = await openOperatorDeps(call.config)
    await act(control)
    return 0
  },
}

type Act = (control: OperatorDeps) => Promise<void>

function readAct({ args, switches }: Call): Act {
  const [verb, name, file, ...rest] = args
  if (rest.length === 0) {
    if (verb === 'list' && name === undefined) return switches.has('json') ? listJson : list
    if (verb === 'show' && name !== undefined && file === undefined) return showing(name)
    if (verb === 'set' && name !== undefined && file !== undefined) return setting(name, file)
  }
  throw new UsageError(`usage: sandyard ${plan.usage}`)
}

async function list(control: OperatorDeps): Promise<void> {
  const lines = (await listPlans(control)).map(({ name, limits, prices, orgs }) => {
    const set = Object.entries(limits).filter(([, value]) => value !== null)
    const shown = set.map(([limit, value]) => `${limit}=${String(value)}`).join(' ')
    return [name, String(orgs), prices === null ? 'no' : 'yes', shown === '' ? '-' : shown].join('\t')
  })
  process.stdout.write(`${['PLAN\tORGANIZATIONS\tPRICES\tLIMITS', ...lines].join('\n')}\n`)
}

async function listJson(control: OperatorDeps): Promise<void> {
  process.stdout.write(`${JSON.stringify(await listPlans(control), null, 2)}\n`)
}

function showing(name: string): Act {
  return async (control) => {
    const { limits, prices }: Plan = await getPlan(control, name)
    process.stdout.write(`${JSON.stringify({ limits, prices }, null, 2)}\n`)
  }
}

function setting(name: string, file: string): Act {
  return async (control) => {
    await setPlan(control, name, parse(await readFile(file === '-' ? '/dev/stdin' : file, 'utf8'), file))
    process.stdout.write(`the plan '${name}' is set\n`)
  }
}

function parse(text: string, file: string): unknown {
  try {
    return JSON.parse(text)
  } catch (error) {
    throw new Error(`${file} holds no JSON`, { cause: error })
  }
}
