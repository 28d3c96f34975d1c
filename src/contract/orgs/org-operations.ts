import { taggedReply, defineOperation, type Operation } from '../operation.ts'
import { OrgReply } from './org.ts'

/** The organization of the caller. */
export const ORG_OPERATIONS = {
  get_org: defineOperation({
    id: 'get_org',
    method: 'GET',
    path: '/v1/me/org',
    tag: 'Organization',
    summary: 'Get the organization that the API key belongs to',
    reply: taggedReply(OrgReply, 'The organization and what the caller may do in it.'),
  }),
} as const satisfies Record<string, Operation>
