/** The kinds of faults that schedules inject, as `docs/reliability.md` names them. */
export const FAULTS = [
  'kill -9 of a server or worker process at rest',
  'kill -9 at an action: before it, or after it and before its result arrives',
  'pause of a process, at rest or with an answer in hand',
  'an action done but reported as failed',
  'an action refused: database, driver',
  'a message or notification lost',
  'a message or action that comes twice',
  'a cut of a worker’s link, one way or both',
  'a jump of a wall clock by 2 seconds to an hour',
] as const

type Fault = (typeof FAULTS)[number]

const MESSAGES = new Set(['request', 'reply', 'notification', 'answer'])

/** The kind of fault that a counter of a schedule counts. Null if the counter counts something else. */
export function faultOf(counted: string): Fault | null {
  if (counted.startsWith('kill -9')) return FAULTS[0]
  if (counted.startsWith('pause of')) return FAULTS[2]
  if (counted.startsWith('cut of')) return FAULTS[7]
  if (counted.startsWith('jump of')) return FAULTS[8]
  const [kind = '', ending = ''] = counted.split(' ')
  if (ending.startsWith('dies_')) return FAULTS[1]
  if (ending === 'pauses_after') return FAULTS[2]
  if (ending === 'reported_failed') return FAULTS[3]
  if (ending === 'refused') return MESSAGES.has(kind) ? FAULTS[5] : FAULTS[4]
  return ending === 'twice' ? FAULTS[6] : null
}
