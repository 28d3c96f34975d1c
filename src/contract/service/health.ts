import { Type } from 'typebox'

/** The routes for those who operate the service; they need no key. */

export const HealthReply = Type.Object(
  { status: Type.String() },
  { title: 'Health', description: 'The process is alive.' },
)

export const ReadyReply = Type.Object(
  {
    status: Type.String(),
    reasons: Type.Array(Type.String(), { description: 'What keeps the process from serving; empty when it is ready.' }),
  },
  { title: 'Readiness', description: 'Whether the process can serve requests.' },
)
