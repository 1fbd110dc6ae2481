/* Builds the child's address space in the restorer: unmaps the stub's memory, maps the child's, and sends the
 * userfaultfd to the pager. restore.c calls these functions in order. The pager fetches the pages that are not copied
 * here, on faults. */
#include "restorer.h"

/* Moves the kernel's mappings (vdso, vvar) to the staging area, because their old and new addresses may overlap other
 * mappings. */
void stage_special_mappings(const struct plan *plan)
{
	const struct plan_special_mapping *special = plan_pointer(plan, plan->special_mappings.offset);
	u64 place = plan->region_start + plan->staging_offset;
	for (u32 i = 0; i < plan->special_mappings.count; i++) {
		check(plan, STEP_STAGE_SPECIAL_MAPPING,
		      CALL5(mremap, special[i].from, special[i].bytes, special[i].bytes,
			    K_MREMAP_MAYMOVE | K_MREMAP_FIXED, place),
		      i);
		place += special[i].bytes;
	}
}

void place_special_mappings(const struct plan *plan)
{
	const struct plan_special_mapping *special = plan_pointer(plan, plan->special_mappings.offset);
	u64 place = plan->region_start + plan->staging_offset;
	for (u32 i = 0; i < plan->special_mappings.count; i++) {
		check(plan, STEP_PLACE_SPECIAL_MAPPING,
		      CALL5(mremap, place, special[i].bytes, special[i].bytes, K_MREMAP_MAYMOVE | K_MREMAP_FIXED,
			    special[i].to),
		      i);
		place += special[i].bytes;
	}
}

void unmap_stub(const struct plan *plan)
{
	u64 user_space_end = 0x7ffffffff000ull;
	u64 region_end = plan->region_start + plan->region_bytes;
	check(plan, STEP_UNMAP_STUB, CALL2(munmap, 0, plan->region_start), 0);
	check(plan, STEP_UNMAP_STUB, CALL2(munmap, region_end, user_space_end - region_end), 1);
}

static void advise_mapping(const struct plan *plan, const struct plan_mapping *mapping, u32 index)
{
	static const u16 advice_of[][2] = {
		{ MAPPING_HUGE_PAGE, K_MADV_HUGEPAGE },
		{ MAPPING_NO_HUGE_PAGE, K_MADV_NOHUGEPAGE },
		{ MAPPING_WIPE_ON_FORK, K_MADV_WIPEONFORK },
		{ MAPPING_DONT_DUMP, K_MADV_DONTDUMP },
		{ MAPPING_SEQUENTIAL, K_MADV_SEQUENTIAL },
		{ MAPPING_RANDOM, K_MADV_RANDOM },
		{ MAPPING_MERGEABLE, K_MADV_MERGEABLE },
		{ MAPPING_DONT_FORK, K_MADV_DONTFORK },
	};
	for (u32 i = 0; i < sizeof advice_of / sizeof advice_of[0]; i++)
		if (mapping->flags & advice_of[i][0]) {
			long error = CALL3(madvise, mapping->start, mapping->bytes, advice_of[i][1]);
			/* A kernel without huge pages refuses both kinds of advice, which do not matter for it. */
			if (error != -K_EINVAL || !(advice_of[i][0] & (MAPPING_HUGE_PAGE | MAPPING_NO_HUGE_PAGE)))
				check(plan, STEP_ADVISE, error, index);
		}
}

static void map_mapping(const struct plan *plan, const struct plan_mapping *mapping, u32 index, int file)
{
	u32 type = mapping->flags & MAPPING_SHARED ? K_MAP_SHARED : K_MAP_PRIVATE;
	u32 flags = K_MAP_FIXED_NOREPLACE | (mapping->flags & MAPPING_DROPPABLE ? K_MAP_DROPPABLE : type);
	if (mapping->kind == MAPPING_ANONYMOUS)
		flags |= K_MAP_ANONYMOUS;
	if (mapping->kind == MAPPING_PASSED)
		file = (int)(plan->fd_base + mapping->source);
	if (mapping->flags & MAPPING_GROWS_DOWN)
		flags |= K_MAP_GROWSDOWN;
	if (mapping->flags & MAPPING_NO_RESERVE)
		flags |= K_MAP_NORESERVE;
	long place = CALL6(mmap, mapping->start, mapping->bytes, mapping->protection, flags, file, mapping->offset);
	if (place != (long)mapping->start)
		fail_restore(plan, STEP_MAP, place < 0 ? place : -K_EINVAL, index);
	if (mapping->flags & ~(MAPPING_SHARED | MAPPING_GROWS_DOWN | MAPPING_NO_RESERVE | MAPPING_DROPPABLE))
		advise_mapping(plan, mapping, index);
}

/* Counts the mappings, from this one on, that are adjacent and differ only in read and write protection. */
static u32 count_mergeable(const struct plan_mapping *mapping, u32 left)
{
	u32 count = 1;
	if (mapping->kind != MAPPING_ANONYMOUS || (mapping->flags & (MAPPING_SHARED | MAPPING_GROWS_DOWN)))
		return 1;
	while (count < left && mapping[count].kind == MAPPING_ANONYMOUS && mapping[count].flags == mapping->flags &&
	       ((mapping[count].protection ^ mapping->protection) & K_PROT_EXEC) == 0 &&
	       mapping[count].start == mapping[count - 1].start + mapping[count - 1].bytes)
		count++;
	return count;
}

/* Maps adjacent mappings by one mmap, then sets differing protections by mprotect: two thirds of the cost of one mmap
 * for each. Writable memory counts against the commit limit. So the mmap is not writable, and mprotect charges only the
 * writable parts. Returns the number of mappings; 0 if all are writable, and none was mapped. */
static u32 map_merged(const struct plan *plan, const struct plan_mapping *first, u32 index, u32 count)
{
	u32 common = 0;
	while (common < count && (first[common].protection & K_PROT_WRITE))
		common++;
	if (common == count)
		return 0;
	struct plan_mapping all = first[common];
	all.start = first->start;
	all.bytes = first[count - 1].start + first[count - 1].bytes - first->start;
	map_mapping(plan, &all, index, -1);
	for (u32 i = 0; i < count; i++)
		if (first[i].protection != all.protection)
			check(plan, STEP_MAP, CALL3(mprotect, first[i].start, first[i].bytes, first[i].protection),
			      index + i);
	return count;
}

/* Makes all mappings of the plan. File mappings are sorted by file, so that each file is opened once, and only one file
 * is open at a time. */
void map_all_mappings(const struct plan *plan)
{
	const struct plan_mapping *mapping = plan_pointer(plan, plan->mappings.offset);
	const struct plan_file *files = plan_pointer(plan, plan->files.offset);
	u32 opened = ~0u;
	int file = -1;

	for (u32 i = 0; i < plan->mappings.count;) {
		u32 count = count_mergeable(&mapping[i], plan->mappings.count - i);
		u32 mapped = count > 1 ? map_merged(plan, &mapping[i], i, count) : 0;
		if (mapped > 0) {
			i += mapped;
			continue;
		}
		if (mapping[i].kind == MAPPING_FILE && mapping[i].source != opened) {
			if (file >= 0)
				CALL1(close, file);
			opened = mapping[i].source;
			file = (int)check(plan, STEP_OPEN_MAPPED_FILE,
					  CALL3(open, plan_pointer(plan, files[opened].path), files[opened].flags, 0), opened);
		}
		map_mapping(plan, &mapping[i], i, file);
		i++;
	}
	if (file >= 0)
		CALL1(close, file);
}

/* Installs guard pages, which raise SIGSEGV inside an accessible mapping. The pager gets no faults for them. */
void install_guards(const struct plan *plan)
{
	const struct plan_range *guard = plan_pointer(plan, plan->guards.offset);
	for (u32 i = 0; i < plan->guards.count; i++)
		check(plan, STEP_GUARD, CALL3(madvise, guard[i].start, guard[i].bytes, K_MADV_GUARD_INSTALL), i);
}

/* Locks memory. Runs after the guards, because guards cannot be installed in locked memory. MLOCK_ONFAULT: pages are
 * still fetched by the pager on faults. */
void lock_ranges(const struct plan *plan)
{
	const struct plan_range *locked = plan_pointer(plan, plan->locked_ranges.offset);
	for (u32 i = 0; i < plan->locked_ranges.count; i++)
		check(plan, STEP_ADVISE, CALL3(mlock2, locked[i].start, locked[i].bytes, K_MLOCK_ONFAULT), i);
}

/* Copies bytes from the plan into the memory. Runs before the ranges are registered, so that a page costs neither a
 * system call nor a userfaultfd message. */
void copy_eager_bytes(const struct plan *plan)
{
	const struct plan_eager_bytes *eager = plan_pointer(plan, plan->eager.offset);
	for (u32 i = 0; i < plan->eager.count; i++)
		copy_bytes((void *)eager[i].address, plan_pointer(plan, eager[i].offset), eager[i].bytes);
}

/* Sends a descriptor. The message contains the process's index. `second_fd`: another descriptor to send along, or
 * -1. */
static void send_fd(const struct plan *plan, int socket, int fd, int second_fd)
{
	const u64 count = second_fd < 0 ? 1 : 2;
	struct {
		struct k_cmsghdr header;
		i32 fds[2];
	} control = { { sizeof(struct k_cmsghdr) + count * sizeof(i32), K_SOL_SOCKET, K_SCM_RIGHTS }, { fd, second_fd } };
	u32 process_index = plan->process_index;
	struct k_iovec vector = { &process_index, sizeof process_index };
	struct k_msghdr message = { 0, 0, &vector, 1, &control, sizeof control, 0 };
	check(plan, STEP_SEND_USERFAULTFD, CALL3(sendmsg, socket, &message, K_MSG_NOSIGNAL), 0);
}

/* Registers the memory with a new userfaultfd, and sends this to the pager. May return before the pager has received
 * it: until then, faults wait. */
void register_userfaultfd(const struct plan *plan)
{
	const struct plan_range *range = plan_pointer(plan, plan->userfaultfd_ranges.offset);
	struct k_uffdio_api api = { K_UFFD_API,
				    K_UFFD_FEATURE_EVENT_FORK | K_UFFD_FEATURE_EVENT_REMAP |
					    K_UFFD_FEATURE_EVENT_REMOVE | K_UFFD_FEATURE_EVENT_UNMAP |
					    K_UFFD_FEATURE_THREAD_ID,
				    0 };
	if (plan->userfaultfd_ranges.count == 0) {
		/* Report to the pager that this process has no userfaultfd, so that it does not wait for one. */
		if (plan->process_count > 1)
			check(plan, STEP_SEND_USERFAULTFD,
			      CALL6(sendto, (int)plan->fd_base + PASSED_PAGER, &plan->process_index, sizeof plan->process_index,
				    K_MSG_NOSIGNAL, 0, 0),
			      0);
		return;
	}
	int uffd = (int)check(plan, STEP_USERFAULTFD, CALL1(userfaultfd, K_O_CLOEXEC | K_O_NONBLOCK), 0);
	check(plan, STEP_USERFAULTFD, CALL3(ioctl, uffd, K_UFFDIO_API, &api), 1);
	for (u32 i = 0; i < plan->userfaultfd_ranges.count; i++) {
		struct k_uffdio_register area = { range[i].start, range[i].bytes, K_UFFDIO_REGISTER_MODE_MISSING, 0 };
		check(plan, STEP_REGISTER, CALL3(ioctl, uffd, K_UFFDIO_REGISTER, &area), i);
	}
	/* A zygote holds its userfaultfd itself, without a queue: its program never runs. A copy cannot proceed while
	 * its pages are not served. */
	const int queue = (int)plan->fd_base + RESTORER_SLOT_QUEUE, pager = (int)plan->fd_base + PASSED_PAGER;
	if (plan->flags & PLAN_ZYGOTE) {
		check(plan, STEP_KEEP_USERFAULTFD, CALL3(dup3, uffd, queue, K_O_CLOEXEC), 0);
		send_fd(plan, pager, uffd, -1);
	} else {
		send_fd(plan, queue, uffd, -1);
		send_fd(plan, pager, uffd, queue);
	}
	CALL1(close, uffd);
}

/* Sets the addresses and the executable of the address space by prctl(2), PR_SET_MM_MAP. The executable can be set only
 * when the old one is not mapped, and then without CAP_SYS_RESOURCE. */
void set_mm(const struct plan *plan)
{
	struct {
		u64 addresses[11];
		const void *auxv;
		u32 auxv_bytes;
		u32 exe;
	} map;
	for (u32 i = 0; i < 11; i++)
		map.addresses[i] = plan->mm[i];
	map.auxv = plan_pointer(plan, plan->auxv.offset);
	map.auxv_bytes = plan->auxv.count * 8;
	const int is_passed = (plan->flags & PLAN_EXE_PASSED) != 0;
	map.exe = plan->fd_base + plan->exe;
	if (!is_passed)
		map.exe = (u32)check(plan, STEP_OPEN_EXECUTABLE,
				     CALL3(open, plan_pointer(plan, plan->exe), K_O_RDONLY | K_O_CLOEXEC, 0), 0);
	check(plan, STEP_SET_MM, CALL5(prctl, K_PR_SET_MM, K_PR_SET_MM_MAP, &map, sizeof map, 0), 0);
	/* Keep a passed descriptor open: another process may use it, too. */
	if (!is_passed)
		CALL1(close, map.exe);
}
