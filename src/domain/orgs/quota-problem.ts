import { Problem, PROBLEMS } from '../problem.ts'
import { LIMITS, INCLUDED_HOURS, type QuotaRefusal } from './quota.ts'

/** The maximum number of decimals of an amount in a message. `details` contains all decimals. */
const SHOWN_DECIMALS = 2

/**
 * The problem for a create or start that a limit refuses. `details` contains the refusal and how to change the limit.
 * The message says the same in a sentence.
 */
export function quotaProblem(refusal: QuotaRefusal, slug: string): Problem {
  const how_to_change = howToChange(refusal.limit, slug)
  const code = refusal.limit === 'is_suspended' ? 'org_suspended' : 'quota_exceeded'
  return new Problem(code, {
    message: `${PROBLEMS[code].message}: ${sentenceOf(refusal)}; ${how_to_change}`,
    details: { ...refusal, how_to_change },
  })
}

function sentenceOf({ limit, max, current, requested }: QuotaRefusal): string {
  if (limit === 'is_suspended') return 'it may not start sandboxes'
  const allowed = `${limit} is ${String(max)} ${LIMITS[limit].unit}`
  const isIncludedHours = INCLUDED_HOURS.some((name) => name === limit)
  if (isIncludedHours)
    return `${allowed} a month and ${formatAmount(current)} are used; the next UTC month starts at 0 again`
  if (current === null) return `${allowed} and ${formatAmount(requested)} were requested`
  return `${allowed}, ${formatAmount(current)} are in use and ${formatAmount(requested)} more was requested`
}

function howToChange(limit: QuotaRefusal['limit'], slug: string): string {
  if (limit === 'is_suspended') return `the operator can end the suspension: sandyard org resume ${slug}`
  return `the operator can change it: sandyard quota set ${limit} VALUE --org ${slug}`
}

function formatAmount(amount: number | null): string {
  return amount === null ? 'none' : String(Number(amount.toFixed(SHOWN_DECIMALS)))
}
